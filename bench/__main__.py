"""`python -m bench`: the table of every bench in this folder that is quick enough to run in turn."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import bench


def names() -> list[str]:
    """Benches: the modules beside this one that are no parts of others."""
    found = (module.name for module in pkgutil.iter_modules(bench.__path__))
    return sorted(name for name in found if not name.startswith("_"))


def main() -> int:
    """Run each bench in a process of its own, so that none disturbs the next; 1 if one failed."""
    failed = [
        name
        for name in names()
        if subprocess.run([sys.executable, "-m", f"bench.{name}"], check=False).returncode
    ]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
