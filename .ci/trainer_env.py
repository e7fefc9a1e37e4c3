"""Makes `.venvs/NAME`: the environment in which a trainer's own package is tested.

It holds what `tests/trainers/NAME/requirements.txt` lists and nothing else; a `.pth` file puts the
packages of `.venv` (torch, vLLM, Ray, this project) behind it, so that gigabytes are not installed
once per trainer.  Requirements are installed without their dependencies: a trainer's pins of
CUDA builds would replace what works on a CPU.  Made once; made anew when the requirements change.
"""

import hashlib
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main(name: str) -> int:
    """Make the environment of the trainer `name`; prints the path of its Python."""
    wanted = ROOT / "tests" / "trainers" / name / "requirements.txt"
    if not wanted.is_file():
        known = sorted(path.parent.name for path in wanted.parent.parent.glob("*/requirements.txt"))
        print(f"no trainer {name!r}; valid: {', '.join(known)}", file=sys.stderr)
        return 2
    base = sysconfig.get_paths()["purelib"]
    folder = ROOT / ".venvs" / name
    stamp, python = folder / ".installed", folder / "bin" / "python"
    state = hashlib.sha256(f"{sys.version} {base}".encode() + wanted.read_bytes()).hexdigest()
    if not (stamp.is_file() and stamp.read_text() == state):
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        ask = [python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"]
        site = subprocess.run(ask, check=True, capture_output=True, text=True).stdout.strip()
        pip = [python, "-m", "pip", "--disable-pip-version-check", "-qq", "install", "--no-deps"]
        pip.append("--ignore-requires-python")  # SkyRL asks for 3.12; what is tested runs on ours
        subprocess.run([*pip, "-r", wanted], check=True)
        # `addsitedir` follows the .pth files in there too: this project is installed by one
        (Path(site) / "base.pth").write_text(f"import site; site.addsitedir({base!r})\n")
        stamp.write_text(state)
    print(python)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
