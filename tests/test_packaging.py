"""What `pip install` without `-e` installs is whole."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_wheel_holds_every_module_and_the_configuration_of_nats(tmp_path):
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=60)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as content:
        names = {name for name in content.namelist() if ".dist-info/" not in name}
    sources = [ROOT / root for root in ("liftpy", "envelope", "server", "clients")]
    modules = {str(path.relative_to(source)) for source in sources for path in source.rglob("*.py")}
    typed = {f"{name.split('/')[0]}/py.typed" for name in modules}
    console = ROOT / "liftpy/liftpy/cli/console"
    shown = {
        str(path.relative_to(ROOT / "liftpy"))
        for folder in ("templates", "static")
        for path in (console / folder).rglob("*")
        if path.is_file()
    }
    assert len(shown) > 10
    assert names == modules | typed | shown | {"liftpy/nats.conf"}
