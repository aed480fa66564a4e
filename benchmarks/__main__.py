"""Run benchmark programs, one after the other.

    python -m benchmarks [NAME ...] [--quick] [--save]
    python -m benchmarks --render

`--render` writes the page and README's table from the saved tables, without measuring.
"""

from __future__ import annotations

import subprocess
import sys
import time

from benchmarks import report


def main() -> int:
    """Return 1 if a program failed."""
    parser = report.parser(__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(report.NAMES))
    parser.add_argument("--render", action="store_true", help="write the pages and stop")
    options = parser.parse_args()
    if unknown := set(options.names) - set(report.NAMES):
        parser.error(f"no program is named {', '.join(sorted(unknown))}")
    if options.render:
        report.render()
        return 0
    flags = [f"--{flag}" for flag in ("quick", "save") if getattr(options, flag)]
    failed = []
    for name in options.names or report.NAMES:
        print(f"== {name}", flush=True)
        start = time.perf_counter()
        command = [sys.executable, "-m", f"benchmarks.{name}", *flags]
        if subprocess.run(command, check=False).returncode:
            failed.append(name)
        print(f"== {name}: {time.perf_counter() - start:.0f} s", flush=True)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return len(failed) > 0


if __name__ == "__main__":
    sys.exit(main())
