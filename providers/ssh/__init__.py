"""The provider `ssh`: hosts that exist. It makes no machines: it takes them, looks at them, runs ranks there.

Nothing has to be installed on a host but flock and setsid (util-linux), coreutils, grep and sed. asyncssh is
imported when the first host is contacted, and not before.
"""

from providers.ssh.provider import Ssh

__all__ = ["Ssh"]
