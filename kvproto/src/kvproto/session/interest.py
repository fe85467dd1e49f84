"""What a reader knows of the interest that the switch keeps in one chunk."""

from dataclasses import dataclass

from kvproto.ids import Address, Member


@dataclass(slots=True, eq=False)
class Interest:
    """Owned by one chunk and written by `Membership` only. Times are nanoseconds."""

    at: Address | None = None
    """Where the last JOIN went, as long as no LEAVE has followed it: the switch may keep our interest."""
    join_sent_ns: int = 0
    join_tries: int = 0
    unanswered: bool = False
    """No NOTICE came after several tries, and nothing worse is known of the switch."""
    members: int = 0
    """Interest set as of the last NOTICE, as a bitmap."""
    cached: bool = False
    """The switch serves the chunk."""
    leader: Member | None = None
    leader_ns: int = 0
    """When the leader was last heard of."""
    left_ns: int | None = None
    """When the leader left or gave up, as long as there is no other."""
    over_ns: int | None = None
    """The same of a leader that was known: what has come since is what others repair, unless another leads."""

    def led_by(self, member: Member | None, now_ns: int) -> None:
        """This member pulls the chunk, and was heard of now."""
        self.leader, self.leader_ns, self.over_ns = member, now_ns, None

    def company(self, me: Member | None) -> int:
        """Bitmap of the others in the interest set."""
        return self.members if me is None else self.members & ~(1 << me)
