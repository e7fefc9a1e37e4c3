"""Events come out whole, wherever the network cuts them."""

import json

from hypothesis import given
from hypothesis import strategies as st

from steersman.mechanisms.http_vllm.sse import Events

PAYLOAD = st.text(alphabet='ab€"{}: \n', max_size=30).map(lambda text: json.dumps(text).encode())


@given(st.lists(PAYLOAD, max_size=8), st.data())
def test_cuts_do_not_matter(payloads: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(b"data: " + payload + b"\n\n" for payload in payloads)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    events, told = Events(), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        told += events.feed(stream[start:end])
    assert told == payloads


def test_comments_are_no_events() -> None:
    events = Events()
    assert events.feed(b": ping\n\ndata:1\n\ndata: 2") == [b"1"]
    assert events.feed(b"\n\n") == [b"2"]


def test_raw_blocks_keep_everything() -> None:
    events = Events()
    assert events.blocks(b": ping\n\nda") == [b": ping"]
    assert events.blocks(b"ta: 1\n\n") == [b"data: 1"]
