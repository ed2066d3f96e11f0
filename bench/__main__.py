"""`python -m bench [--data FILE.csv]`: the table of every bench in this folder, in turn.

`bench.step_model` needs measured step times: without `--data` it is left out, and that is said.
"""

from __future__ import annotations

import argparse
import pkgutil
import subprocess
import sys

import bench

NEED_DATA = ("step_model",)


def names() -> list[str]:
    """Benches: the modules beside this one that are no parts of others."""
    found = (module.name for module in pkgutil.iter_modules(bench.__path__))
    return sorted(name for name in found if not name.startswith("_"))


def main() -> int:
    """Run each bench in a process of its own, so that none disturbs the next; 1 if one failed."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--data", help="measured step times (CSV), for bench.step_model")
    data = parser.parse_args().data
    failed = []
    for name in names():
        needs_data = name in NEED_DATA
        if needs_data and data is None:
            print(f"{name} is left out: it needs --data FILE.csv", file=sys.stderr)
            continue
        extra = ["--data", data] if needs_data else []
        if subprocess.run([sys.executable, "-m", f"bench.{name}", *extra], check=False).returncode:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
