"""What operations hold meanwhile: the numbers that they have made and that nobody has let go of."""

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class HeldNumbers(TorchDispatchMode):
    """Counts them while it is entered; a view of what is there holds nothing of its own."""

    now = most = 0

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        known = {id(one) for one in tree_leaves((arguments, named))}
        found = function(*arguments, **(named or {}))
        for one in tree_leaves(found):
            if isinstance(one, torch.Tensor) and id(one) not in known and one._base is None:
                self.see(function, one)
                self.now += one.numel()
                self.most = max(self.most, self.now)
                weakref.finalize(one, self._let_go, one.numel())
        return found

    def see(self, function: Any, made: torch.Tensor) -> None:
        """Be told of each; for who counts something else as well."""

    def _let_go(self, number: int) -> None:
        self.now -= number
