"""OpenSSH's sshd on loopback, from PATH or unpacked from Debian's packages; only this user, by one key.  Run
by root it needs a user `sshd` and /run/sshd: Debian's nss_wrapper shows the user to sshd alone."""

import getpass
import os
import pwd
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from testbed import debian
from testbed.binaries import Progress, cache_folder
from testbed.errors import TestbedError
from testbed.loopback import LOOPBACK
from testbed.processes import Failed

PACKAGES = ("openssh-server", "libnss-wrapper")
SYSTEM = "/usr/sbin:/usr/local/sbin:/sbin"
SEPARATED = Path("/run/sshd")
"""Where Debian's sshd, run by root, is confined before a login."""
WAY_OUT = "Debian and Ubuntu: apt-get install openssh-server; Fedora: dnf install openssh-server"
CONFIG = Path(__file__).with_name("sshd_config")


@dataclass(frozen=True)
class Sshd:
    """The program, the environment that it needs itself, and more lines of its configuration."""

    program: Path
    environ: Mapping[str, str] = field(default_factory=dict)
    more: str = ""

    def config(self, folder: Path, *, port: int, authorized: Path, environment: Mapping[str, str]) -> str:
        """Of a host whose key is in `folder`; `environment` is that of its sessions."""
        return self.more + CONFIG.read_text("utf-8").format(
            address=LOOPBACK,
            port=port,
            folder=folder,
            authorized=authorized,
            user=getpass.getuser(),
            environment=" ".join(f'"{name}={value}"' for name, value in environment.items()),
        )


def find_sshd(progress: Progress) -> Sshd:
    """The machine's own, else that of the cache, which is downloaded where there is none."""
    for program in ("ssh", "ssh-keygen"):
        if not shutil.which(program):
            raise TestbedError(f"no `{program}` on PATH.  Debian and Ubuntu: apt-get install openssh-client")
    installed = shutil.which("sshd", path=f"{os.environ.get('PATH', os.defpath)}:{SYSTEM}")
    if installed and (os.geteuid() or _has_separated_user()):
        sshd = Sshd(Path(installed).resolve())
    else:
        sshd = _unpacked(cache_folder(os.environ) / "sshd", progress)
    if os.geteuid() == 0:
        SEPARATED.mkdir(mode=0o755, exist_ok=True)
    return sshd


def _unpacked(root: Path, progress: Progress) -> Sshd:
    if not root.is_dir():
        progress(f"downloading Debian's {', '.join(PACKAGES)} (2 MB)")
    try:
        debian.unpack(root, *PACKAGES, missing=True)
    except (OSError, Failed) as error:
        raise TestbedError(
            f"no sshd on this machine, and none can be downloaded.  {WAY_OUT}\n{error}"
        ) from error
    program = root / "usr/sbin/sshd"
    [wrapper] = root.glob("usr/lib/*/libnss_wrapper.so") or [None]
    if not program.exists() or wrapper is None:
        raise TestbedError(f"{program} is not whole: remove {root}, or install it.  {WAY_OUT}")
    environ = {"LD_LIBRARY_PATH": str(wrapper.parent)}
    if os.geteuid() == 0 and not _has_separated_user():
        environ |= {"LD_PRELOAD": str(wrapper), **_wrapped_users(root)}
    parts = {"SshdSessionPath": "sshd-session", "SshdAuthPath": "sshd-auth"}
    paths = {key: root / "usr/lib/openssh" / name for key, name in parts.items()}
    return Sshd(
        program, environ, "".join(f'{key} "{path}"\n' for key, path in paths.items() if path.exists())
    )


def _wrapped_users(root: Path) -> dict[str, str]:
    users, groups = root / "passwd", root / "group"
    users.write_text("root:x:0:0:root:/:/bin/sh\nsshd:x:65534:65534::/run/sshd:/usr/sbin/nologin\n")
    groups.write_text("root:x:0:\nnogroup:x:65534:\n")
    return {"NSS_WRAPPER_PASSWD": str(users), "NSS_WRAPPER_GROUP": str(groups)}


def _has_separated_user() -> bool:
    return any(user.pw_name == "sshd" for user in pwd.getpwall())


def make_key(path: Path) -> str:
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "nodegauge-hosts", "-f", str(path)]
    subprocess.run(command, check=True, capture_output=True, stdin=subprocess.DEVNULL)
    return path.with_name(f"{path.name}.pub").read_text(encoding="utf-8").strip()
