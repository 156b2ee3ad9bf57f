# Yours to finish. Generated from shared/serving/cluster/prefix_router.py (version d80bc80964fa).
"""Which replica gets a request: the one that knows the longest beginning of it, unless it has too much to do."""

from chapters import Todo
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence

from shared.inference.block_manager import block_name


class PrefixRouter:
    """Remembers which beginnings each replica was sent, in blocks of tokens, as the replicas' prefix caches do.

    max_imbalance: a replica with so much more load than the least loaded isn't chosen, whatever it knows. max_blocks:
    so many block names are remembered of each replica, those used last. Nothing is asked of the replicas. Raises
    ValueError that names the setting.
    """

    def __init__(
        self, replicas: Iterable[str], block_size: int = 16, max_imbalance: float = 8, max_blocks: int = 4096
    ) -> None:
        if block_size < 1 or not max_imbalance >= 0 or max_blocks < 0:
            raise ValueError(
                "block_size must be at least 1, max_imbalance and max_blocks at least 0, "
                f"not {block_size}, {max_imbalance} and {max_blocks}"
            )
        self.block_size, self.max_imbalance, self.max_blocks = block_size, max_imbalance, max_blocks
        self._known: dict[str, OrderedDict[bytes, None]] = {replica: OrderedDict() for replica in replicas}

    @property
    def replicas(self) -> list[str]:
        """The replicas that may be picked."""
        return list(self._known)

    def add(self, replica: str) -> None:
        """A replica that is new, or was started anew: its cache is empty."""
        self._known[replica] = OrderedDict()

    def remove(self, replica: str) -> None:
        """A replica is gone; unknown names are ignored."""
        self._known.pop(replica, None)

    def pick(self, token_ids: Sequence[int], loads: Mapping[str, float]) -> str:
        """The replica for a prompt, which from now on counts as known to it.

        loads: what each replica has to do, in requests; none given is 0. Of the replicas with at most max_imbalance
        more than the least loaded, the one that knows the longest beginning; among equals the least loaded, and then
        the first. Raises LookupError when there is no replica.
        """
        if not self._known:
            raise LookupError("there is no replica to send a request to")
        names = self._names(token_ids)
        # exercise 14.13: who isn't too busy; the best of them by (blocks known, less load); remember, and return it
        #   self._num_known(replica, names): how many blocks from the first on; self._remember(replica, names)
        raise Todo("14.13")
        # end

    def _names(self, token_ids: Sequence[int]) -> list[bytes]:
        """The names of the prompt's full blocks; each stands for all the tokens up to its end."""
        names, name = [], b""
        for end in range(self.block_size, len(token_ids) + 1, self.block_size):
            name = block_name(name, token_ids[end - self.block_size : end])
            names.append(name)
        return names

    def _num_known(self, replica: str, names: Sequence[bytes]) -> int:
        known = self._known[replica]
        return next((n for n, name in enumerate(names) if name not in known), len(names))

    def _remember(self, replica: str, names: Sequence[bytes]) -> None:
        """The last block first, so that beginnings are forgotten after what they are the beginning of."""
        known = self._known[replica]
        for name in reversed(names):
            known[name] = None
            known.move_to_end(name)
        while len(known) > self.max_blocks:
            known.popitem(last=False)
