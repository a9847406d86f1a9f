"""User ids for programs where we are root: no two sandboxes have one at the same time.

The kernel counts processes by user id and lets processes of one user id signal each other, so two
programs of one id could hinder each other.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Sequence

_USERS = range(61_000, 65_000)


class NoUser(RuntimeError):
    """Every user id that programs may get is taken."""


def claimed_user(users: Sequence[int] = _USERS) -> tuple[int, socket.socket]:
    """A user id, and the socket that claims it until the last process that holds it has ended.

    Claims are names of abstract sockets: they leave no file behind, however a process ends.

    Args:
      users: the ids to choose from.

    Raises:
      NoUser: all of them are taken.
    """
    # From a random one on: names of other network namespaces, which share the ids, are not seen.
    first = random.SystemRandom().randrange(len(users))
    for user in (*users[first:], *users[:first]):
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            claim.bind(f"\0jaxrl_vr-sandbox-user-{user}")
        except OSError:
            claim.close()
        else:
            return user, claim
    raise NoUser(
        f"all user ids from {users[0]} to {users[-1]} are taken by sandboxes; verify with fewer "
        "workers"
    )
