"""fedloom: federated learning for clients whose data disagree. A method is a sum of parts.

The public names are those of `public.py`. They are imported with the first use of one of them, since they need torch: the
command line prints its help, completes names and answers a typo without it.
"""

import sys
from functools import cache
from pkgutil import iter_modules
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fedloom.version import __version__ as __version__

if TYPE_CHECKING:
    from fedloom.public import *  # noqa: F403


class _Package(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if (name.startswith("__") and name != "__all__") or name in _rooms():
            raise AttributeError(f"module 'fedloom' has no attribute {name!r}")
        from fedloom import public

        if name == "__all__":
            return [*public.__all__, "__version__"]
        if name not in public.__all__:
            raise AttributeError(f"module 'fedloom' has no attribute {name!r}")
        return getattr(public, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """`fl.report` is the function, also after the room of the same name is imported."""
        if name not in _SHADOWED or not isinstance(value, ModuleType):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted([*super().__dir__(), *self.__all__])


_SHADOWED = ("report",)  # rooms with the name of a public function


@cache
def _rooms() -> set[str]:
    """Modules of this package: they are attributes after their import alone."""
    return {module.name for module in iter_modules(sys.modules[__name__].__path__)} - {*_SHADOWED}


sys.modules[__name__].__class__ = _Package
