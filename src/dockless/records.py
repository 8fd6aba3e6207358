"""``dataclass(slots=True)`` without its price at import: the same classes, whose methods are made when they are first needed.

The standard decorator writes and compiles up to seven methods for every class, half a millisecond each time, and imports ``inspect`` to do
so: a third of what ``dockless run`` takes from start to exit. Here ``__eq__``, ``__hash__`` and ``__repr__`` are shared closures, and
``__init__`` is one too until a class is made often; ``__dataclass_fields__`` appears when somebody asks. For ``dataclasses.fields``,
``replace`` and ``asdict``, for msgspec, pickle, ``inspect``, hypothesis and type checkers nothing differs.

Use it in place of the standard import: ``from dockless.records import dataclass, field, replace``. What it does not know (inheritance, no
slots, special fields, methods of one's own in place of the made ones) it hands to the standard decorator.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
    from dataclasses import field as field
    from dataclasses import replace as replace
else:
    from typing import Any

    _MISSING = object()
    _OFTEN = 4  # instances after which a written-out __init__ is worth its compilation
    _OURS = frozenset(
        ("__init__", "__eq__", "__hash__", "__repr__", "__setattr__", "__delattr__", "__getstate__", "__setstate__", "__slots__")
    )

    class _Factory:
        """What ``field(default_factory=…)`` leaves in a class."""

        __slots__ = ("make",)

        def __init__(self, make: Any) -> None:
            self.make = make

    def field(**settings: Any) -> Any:
        """``dataclasses.field``."""
        if settings.keys() == {"default_factory"}:
            return _Factory(settings["default_factory"])
        import dataclasses

        return dataclasses.field(**settings)

    def replace(record: Any, /, **changes: Any) -> Any:
        """``dataclasses.replace``."""
        cls = record.__class__
        if type(cls.__dict__.get("__dataclass_fields__")) is not _Standard:
            import dataclasses

            return dataclasses.replace(record, **changes)
        return cls(**({name: getattr(record, name) for name in cls.__match_args__} | changes))

    def dataclass(cls: Any = None, /, *, frozen: bool = False, slots: bool = False, **more: Any) -> Any:
        """``dataclasses.dataclass``."""

        def decorate(cls: Any) -> Any:
            if not slots or more or not _simple(cls):
                return _standard(cls, frozen=frozen, slots=slots, **more)
            return _build(cls, frozen)

        return decorate if cls is None else decorate(cls)

    def _simple(cls: Any) -> bool:
        values = [cls.__dict__[name] for name in _names(cls) if name in cls.__dict__]
        special = any(type(value).__module__ == "dataclasses" or isinstance(value, (list, dict, set)) for value in values)
        return not special and not _OURS & set(cls.__dict__) and not any(hasattr(base, "__dataclass_fields__") for base in cls.__bases__)

    def _standard(cls: Any, **settings: Any) -> Any:
        import dataclasses

        for name in _names(cls):
            if type(cls.__dict__.get(name)) is _Factory:
                setattr(cls, name, dataclasses.field(default_factory=cls.__dict__[name].make))
        return dataclasses.dataclass(**settings)(cls)

    def _annotations(cls: Any) -> dict[str, Any]:
        return dict(cls.__annotations__)  # the class's own: those of a base are not looked up here

    def _names(cls: Any) -> list[str]:
        return [name for name, kind in _annotations(cls).items() if not str(kind).startswith(("ClassVar", "typing.ClassVar"))]

    def _build(cls: Any, frozen: bool) -> Any:
        names = tuple(_names(cls))
        defaults = {name: cls.__dict__[name] for name in names if name in cls.__dict__}
        space = {key: value for key, value in cls.__dict__.items() if key not in defaults and key not in ("__dict__", "__weakref__")}
        space["__slots__"] = space["__match_args__"] = names
        space["__annotations__"] = _annotations(cls)
        key = attrgetter(*names) if len(names) > 1 else lambda record: tuple(getattr(record, name) for name in names)

        def __eq__(self: Any, other: Any) -> Any:
            return key(self) == key(other) if other.__class__ is self.__class__ else NotImplemented

        def __repr__(self: Any) -> str:
            return f"{self.__class__.__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

        space |= {"__eq__": __eq__, "__repr__": __repr__, "__hash__": None, "__replace__": replace}
        space |= {name: _Standard(name, cls, names, defaults, frozen) for name in ("__dataclass_fields__", "__dataclass_params__")}
        space["__signature__"] = _Signature()
        if frozen:
            space |= {"__hash__": lambda self: hash(key(self)), "__setattr__": _refuse, "__delattr__": _refuse}
            space |= {"__getstate__": lambda self: [getattr(self, name) for name in names], "__setstate__": _set_state}
        new = type(cls)(cls.__name__, cls.__bases__, space)
        new.__qualname__ = cls.__qualname__
        new.__init__ = _init(new, names, defaults)
        return new

    def _rows(cls: Any, names: Any, defaults: Any) -> list[tuple[str, Any, Any]]:
        """(name, what stores it, default) of each field. The slot's own setter passes by the refusal of frozen records."""
        return [(name, cls.__dict__[name].__set__, defaults.get(name, _MISSING)) for name in names]

    def _init(cls: Any, names: Any, defaults: Any) -> Any:
        rows = _rows(cls, names, defaults)
        post = hasattr(cls, "__post_init__")
        made = 0

        def __init__(self: Any, *args: Any, **given: Any) -> None:
            nonlocal made
            made += 1
            used = 0
            if made <= _OFTEN and len(args) <= len(rows):
                for (_, put, _), value in zip(rows, args, strict=False):
                    put(self, value)
                for name, put, default in rows[len(args) :]:
                    if name in given:
                        value = given[name]
                        used += 1
                    elif type(default) is _Factory:
                        value = default.make()
                    elif default is _MISSING:
                        break
                    else:
                        value = default
                    put(self, value)
                else:
                    if used == len(given):
                        if post:
                            self.__post_init__()
                        return
            # Often enough, or arguments that do not fit: the written-out one, which also has the right words for a TypeError.
            cls.__init__ = _written_out(cls, rows, post)
            cls.__init__(self, *args, **given)

        return __init__

    def _written_out(cls: Any, rows: Any, post: bool) -> Any:
        scope: dict[str, Any] = {"_MISSING": _MISSING}
        head, body = ["self"], []
        for number, (name, put, default) in enumerate(rows):
            scope[f"_put{number}"] = put
            value = name
            if type(default) is _Factory:
                scope[f"_make{number}"] = default.make
                head.append(f"{name}=_MISSING")
                value = f"_make{number}() if {name} is _MISSING else {name}"
            elif default is _MISSING:
                head.append(name)
            else:
                scope[f"_default{number}"] = default
                head.append(f"{name}=_default{number}")
            body.append(f" _put{number}(self, {value})")
        body += [" self.__post_init__()"] if post else [] if body else [" pass"]
        exec(f"def __init__({', '.join(head)}):\n" + "\n".join(body), scope)
        init = scope["__init__"]
        init.__qualname__ = f"{cls.__qualname__}.__init__"
        init.__module__ = cls.__module__
        init.__annotations__ = {name: _annotations(cls)[name] for name, _, _ in rows} | {"return": None}
        return init

    def _refuse(self: Any, name: str, *value: Any) -> None:
        import dataclasses

        raise dataclasses.FrozenInstanceError(f"cannot {'assign to' if value else 'delete'} field {name!r}")

    def _set_state(self: Any, state: Any) -> None:
        for name, value in zip(self.__match_args__, state, strict=True):
            object.__setattr__(self, name, value)

    class _Standard:
        """An attribute that the standard decorator would have set; it is asked when somebody wants to know."""

        __slots__ = ("_made", "_name", "_settings", "_space", "defaults", "names")

        def __init__(self, name: str, cls: Any, names: Any, defaults: Any, frozen: bool) -> None:
            self.names = names
            self.defaults = defaults
            self._name = name
            self._space = {"__annotations__": _annotations(cls), "__module__": cls.__module__, "__doc__": cls.__doc__}
            self._settings = {"frozen": frozen}
            self._made: Any = None

        def __get__(self, record: Any, cls: Any = None) -> Any:
            if self._made is None:
                shadow = _standard(type("shadow", (), self._space | self.defaults), **self._settings)
                self._made = getattr(shadow, self._name)
            return self._made

    class _Signature:
        """``inspect.signature`` of the class sees the written-out ``__init__``."""

        __slots__ = ()

        def __get__(self, record: Any, cls: Any = None) -> Any:
            import inspect

            if cls.__init__.__code__.co_flags & inspect.CO_VARARGS:
                known = cls.__dict__["__dataclass_fields__"]
                cls.__init__ = _written_out(cls, _rows(cls, known.names, known.defaults), hasattr(cls, "__post_init__"))
            whole = inspect.signature(cls.__init__)
            return whole.replace(parameters=list(whole.parameters.values())[1:], return_annotation=whole.empty)
