"""Which statements of analysts reach the engine: decided on the engine's own syntax tree, before anything is resolved.

`parseQueryToJSON` gives the tree whole: settings, names behind `APPLY`, names of `WITH`, every part of every name.
`EXPLAIN AST` leaves these out, and writes an identifier that holds a line break as two lines. A node, a part of a node,
a function or a setting that is not listed here is refused, so what a newer engine adds is refused until it is listed.

The engine's grants, row policies and constraints stand behind this; the gate is for what they do not cover: `file()`
reads the machine's files whatever is granted, and metadata of hidden tables is shown.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from billing_jobs.clickhouse.errors import Refused

Node = dict[str, Any]

MAX_STATEMENT_BYTES = 262_144
MAX_DEPTH = 200
"""Of the tree. The engine's own limits on depth count otherwise, and come later."""

_PARTS: Mapping[str, frozenset[str]] = {
    kind: frozenset(parts.split())
    for kind, parts in {
        "ArrayJoin": "kind expression_list",
        "Asterisk": "transformers",
        "ColumnsApplyTransformer": "func_name lambda lambda_arg parameters",
        "ColumnsExceptTransformer": "children",
        "ColumnsListMatcher": "column_list transformers",
        "ColumnsRegexpMatcher": "pattern transformers",
        "ColumnsReplaceTransformer": "children",
        "ColumnsReplaceTransformerReplacement": "name children",
        "ColumnsTransformerList": "children",
        "ExpressionList": "children",
        "Function": "name arguments parameters alias is_operator kind is_window_function window_definition window_name"
        " is_lambda_function nulls_action is_compound_name",
        "Identifier": "name name_parts children alias",
        "InterpolateElement": "column expr",
        "Literal": "value alias",
        "OrderByElement": "direction nulls_direction nulls_direction_was_explicitly_specified collation expression"
        " with_fill fill_from fill_to fill_step fill_staleness",
        "QualifiedAsterisk": "qualifier transformers",
        "QualifiedColumnsListMatcher": "qualifier column_list transformers",
        "QualifiedColumnsRegexpMatcher": "qualifier pattern transformers",
        "QueryParameter": "name param_type alias",
        "SampleRatio": "numerator denominator",
        "SelectIntersectExceptQuery": "final_operator children",
        "SelectQuery": "select tables distinct with recursive_with where prewhere having qualify window group_by"
        " group_by_all group_by_with_totals group_by_with_rollup group_by_with_cube group_by_with_grouping_sets"
        " order_by order_by_all limit_by limit_by_length limit_by_offset limit_length limit_offset limit_with_ties"
        " interpolate settings",
        "SelectWithUnionQuery": "union_mode list_of_modes list_of_selects format_ast settings_ast",
        "SetQuery": "changes",
        "ShowColumnsQuery": "table database like not_like case_insensitive_like extended full where limit",
        "ShowTablesQuery": "databases full from like not_like case_insensitive_like where limit format_ast",
        "Subquery": "children alias cte_name",
        "TableExpression": "database_and_table_name table_function subquery final sample_size sample_offset",
        "TableIdentifier": "name name_parts children alias",
        "TableJoin": "strictness kind locality using_expression_list on_expression",
        "TablesInSelectQuery": "children",
        "TablesInSelectQueryElement": "table_expression table_join array_join",
        "WindowDefinition": "name parent_window_name partition_by order_by frame_is_default frame_type frame_begin_type"
        " frame_begin_offset frame_begin_preceding frame_end_type frame_end_offset frame_end_preceding",
        "WindowListElement": "name definition",
        "WithElement": "name subquery aliases",
    }.items()
}
"""Kind of node → its parts that are let through. A part that is false says nothing, whatever it is called."""
_STATEMENTS = frozenset({"SelectWithUnionQuery", "ShowTablesQuery", "ShowColumnsQuery"})
_NAME_AS_OPERAND = frozenset({"arrayreduce", "arrayreduceinranges"})
"""Functions whose first argument is the name of one."""
_TYPE_AS_OPERAND = {
    "_cast": -1, "accuratecast": -1, "accuratecastordefault": 1, "accuratecastornull": -1, "cast": -1,
    "defaultvalueoftypename": -1, "dynamicelement": -1, "jsonextract": -1, "jsonextractcaseinsensitive": -1,
    "jsonextractkeysandvalues": -1, "jsonextractkeysandvaluescaseinsensitive": -1, "kqlparametercast": -1,
    "reinterpret": -1, "variantelement": -1,
}  # fmt: skip
"""Functions of whose arguments one names a type → which one, from the end where it is the last."""
_STRUCTURE_AS_OPERAND = frozenset({"null", "values"})
"""Table functions whose first argument may name types."""
READ_STATES = frozenset({"merge"})
"""Combinators: a function with one takes states of aggregate functions."""
_TABLE_AS_OPERAND = frozenset(
    f"{reach}{negation}{nulls}{kind}".lower()
    for reach in ("", "global")
    for negation in ("", "not")
    for nulls in ("", "null")
    for kind in ("In", "InIgnoreSet")
)
"""Functions whose second argument may be the bare name of a table."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What a reader may name. `functions` in lower case, as are `known_functions`: all that the engine has."""

    database: str
    tables: frozenset[tuple[str, str]]
    functions: frozenset[str]
    combinators: tuple[str, ...]
    known_functions: frozenset[str]
    table_functions: frozenset[str]
    settings: frozenset[str]
    formats: frozenset[str]

    def format_of(self, name: str) -> str:
        """Of an answer. Raises Refused."""
        if name not in self.formats:
            raise Refused("UNKNOWN_FORMAT", f"Unknown format {name[:64]}")
        return name

    def allows_function(self, name: str) -> bool:
        """With combinators: `sumIf`, `quantilesExactOrNull`."""
        name = name.lower()
        while name not in self.functions:
            combinator = next((each for each in self.combinators if name.endswith(each) and name != each), None)
            if combinator is None:
                return False
            name = name.removesuffix(combinator)
        return True


def _nodes(tree: Any, place: str = "", depth: int = 0) -> Iterator[tuple[str, Node]]:
    """Each node before what is below it, with the part of its parent that it is. Raises Refused: too deep."""
    if depth > MAX_DEPTH:
        raise Refused("TOO_DEEP_AST", f"the statement is nested deeper than {MAX_DEPTH}")
    if isinstance(tree, dict):
        if "type" in tree:
            yield place, tree
        for name, part in tree.items():
            yield from _nodes(part, name, depth + 1)
    elif isinstance(tree, list):
        for part in tree:
            yield from _nodes(part, place, depth + 1)


def check(tree: Node, rules: Rules, parameters: Mapping[str, str]) -> None:
    """`tree` is of one statement, as `parseQueryToJSON` gives it; `parameters` are what it is asked with. Raises
    Refused.
    """
    if tree["type"] not in _STATEMENTS:
        raise Refused("ACCESS_DENIED", f"statements of the kind {tree['type']} are not accepted")
    # Wherever it is defined: in the one database in which statements are asked, no table is hidden that a name of
    # another scope could reach.
    ctes = {node["name"] for _, node in _nodes(tree) if node["type"] == "WithElement"}
    gate = _Gate(rules, parameters, frozenset(ctes))
    for place, node in _nodes(tree):
        gate.check(place, node)


def _text_of(operand: Node) -> str | None:
    """None: it is no text that is written out."""
    value = operand.get("value") if operand.get("type") == "Literal" else None
    if not isinstance(value, dict) or value.get("field_type") != "String":
        return None
    said = value.get("value")
    return said if isinstance(said, str) else None


class _Gate:
    """Of one statement."""

    def __init__(self, rules: Rules, parameters: Mapping[str, str], ctes: frozenset[str]) -> None:
        self._rules = rules
        self._parameters = parameters
        self._ctes = ctes
        self._checks = {
            "Function": self._function,
            "Identifier": self._identifier,
            "QueryParameter": self._parameter,
            "ColumnsApplyTransformer": self._applied,
            "TableIdentifier": self._table,
            "SetQuery": self._settings,
            "SelectWithUnionQuery": self._format,
            "ShowTablesQuery": self._format,
        }

    def check(self, place: str, node: Node) -> None:
        kind = node["type"]
        parts = _PARTS.get(kind)
        if parts is None:
            raise Refused("ACCESS_DENIED", f"{kind} is not accepted")
        for name, part in node.items():
            if name != "type" and name not in parts and part is not False:
                raise Refused("ACCESS_DENIED", f"{kind} with {name} is not accepted")
        if place == "table_function":
            self._table_function(node)
        elif (specific := self._checks.get(kind)) is not None:
            specific(node)

    # -- functions ------------------------------------------------------------------------------------------------

    def _function(self, node: Node) -> None:
        name = node["name"]
        if not node.get("is_lambda_function"):
            self._function_name(name)
        if (place := _TYPE_AS_OPERAND.get(name.lower())) is not None:
            self._named_type(name, (node.get("arguments") or {}).get("children", ()), place)
        if name.lower() in _NAME_AS_OPERAND:
            self._named_function(node)
        if name.lower() in _TABLE_AS_OPERAND:
            for operand in (node.get("arguments") or {}).get("children", ())[1:]:
                if operand["type"] == "Identifier" or operand.get("param_type") == "Identifier":
                    self._operand(operand)

    def _named_type(self, function: str, operands: Sequence[Node], place: int) -> None:
        """A text that the engine would make of something else is seen by nobody before it is a type."""
        try:
            named = _text_of(operands[place])
        except IndexError:
            named = None
        if named is None:
            raise Refused("ACCESS_DENIED", f"{function} is accepted with the name of a type, written out, alone")
        self._type(named)

    def _type(self, name: str) -> None:
        """States of aggregate functions are read by code that trusts them. The engine takes a type in quotes as well,
        with escapes in it.
        """
        if "aggregatefunction" in name.lower() or "\\" in name:
            raise Refused("ACCESS_DENIED", "states of aggregate functions, and types with escapes, are not accepted")

    def _named_function(self, node: Node) -> None:
        """`arrayReduce('sum', …)`: what it names may have parameters behind it."""
        first: Node = next(iter((node.get("arguments") or {}).get("children", ())), {})
        named = _text_of(first)
        if named is None or not self._rules.allows_function(named.split("(")[0].strip()):
            raise Refused("ACCESS_DENIED", f"what {node['name']} names is not accepted")

    def _function_name(self, name: str) -> None:
        if not self._rules.allows_function(name):
            raise Refused("ACCESS_DENIED", f"function {name} is not accepted")

    def _applied(self, node: Node) -> None:
        """`APPLY(name)`, or a function of its own."""
        self._function_name(node.get("func_name", ""))
        self._name_of_a_value(node.get("func_name", ""))

    def _identifier(self, node: Node) -> None:
        self._name_of_a_value(node["name"])

    def _name_of_a_value(self, name: str) -> None:
        """Where a function is expected, its bare name is one: `arrayMap(file, …)`."""
        name_in_lower_case = name.lower()
        if name_in_lower_case in _TYPE_AS_OPERAND or (
            name_in_lower_case in self._rules.known_functions and not self._rules.allows_function(name)
        ):
            raise Refused("ACCESS_DENIED", f"{name} is the name of a function that is not accepted; rename it")

    def _parameter(self, node: Node) -> None:
        self._type(node["param_type"])
        if node["param_type"] == "Identifier":
            self._name_of_a_value(self._parameters.get(node["name"], ""))

    # -- tables ---------------------------------------------------------------------------------------------------

    def _parts_of(self, node: Node) -> list[str]:
        """Of a name, with parameters in place."""
        said = [self._parameters.get(each["name"], "") for each in node.get("children", ())]
        if node["type"] == "QueryParameter":
            return [self._parameters.get(node["name"], "")]
        parts = node.get("name_parts") or [node["name"]]
        if not said:
            return list(parts)
        return [part or said.pop(0) for part in parts if part or said] + said

    def _operand(self, node: Node) -> None:
        """A column or a table: the engine takes it for a table where there is no such column."""
        parts = self._parts_of(node)
        if len(parts) == 1 and (parts[0] in self._ctes or (self._rules.database, parts[0]) in self._rules.tables):
            return
        if len(parts) == 2 and tuple(parts) in self._rules.tables:
            return
        raise Refused("UNKNOWN_TABLE", f"{'.'.join(parts)} is no table; write IN (column) for a column")

    def _table(self, node: Node) -> None:
        parts = self._parts_of(node)
        if len(parts) == 1:
            if parts[0] in self._ctes:
                return
            parts = [self._rules.database, *parts]
        if len(parts) != 2 or tuple(parts) not in self._rules.tables:
            raise Refused("UNKNOWN_TABLE", f"Table {'.'.join(parts)} does not exist")

    def _table_function(self, node: Node) -> None:
        if node["name"].lower() not in self._rules.table_functions:
            raise Refused("ACCESS_DENIED", f"table function {node['name']} is not accepted")
        if node["name"].lower() in _STRUCTURE_AS_OPERAND:
            self._structure(node["name"], (node.get("arguments") or {}).get("children", ()))

    def _structure(self, function: str, operands: Sequence[Node]) -> None:
        """`values('x UInt8', …)`: what follows the structure is what it says. Without one a row is first."""
        for operand in operands[:1]:
            is_row = operand["type"] == "Function" and operand["name"].lower() == "tuple"
            if operand["type"] != "Literal" and not is_row:
                raise Refused("ACCESS_DENIED", f"{function} is accepted with a structure, written out, or with rows")
            if (named := _text_of(operand)) is not None:
                self._type(named)

    # -- the rest -------------------------------------------------------------------------------------------------

    def _settings(self, node: Node) -> None:
        for change in node.get("changes", ()):
            if change["name"] not in self._rules.settings:
                raise Refused("SETTING_CONSTRAINT_VIOLATION", f"setting {change['name']} cannot be set here")

    def _format(self, node: Node) -> None:
        if (asked := node.get("format_ast")) is not None:
            self._rules.format_of(asked["name"])
