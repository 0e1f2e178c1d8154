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
_NAME_AS_OPERAND = frozenset({"arrayreduce", "arrayreduceinranges", "initializeaggregation"})
"""Functions whose first argument is the name of one."""
_TYPE_AS_OPERAND = frozenset(
    {
        "_cast", "accuratecast", "accuratecastordefault", "accuratecastornull", "cast", "defaultvalueoftypename",
        "dynamicelement", "jsonextract", "kqlparametercast", "reinterpret", "simplejsonextract", "variantelement",
    }
)  # fmt: skip
"""Functions of whose arguments one names a type."""
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
            "ColumnsApplyTransformer": lambda node: self._function_name(node.get("func_name", "")),
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
        if name.lower() in _TYPE_AS_OPERAND:
            self._types_in((node.get("arguments") or {}).get("children", ()))
        if name.lower() in _NAME_AS_OPERAND:
            self._named_function(node)
        if name.lower() in _TABLE_AS_OPERAND:
            for operand in (node.get("arguments") or {}).get("children", ())[1:]:
                if operand["type"] == "Identifier" or operand.get("param_type") == "Identifier":
                    self._operand(operand)

    def _types_in(self, operands: Sequence[Node]) -> None:
        """States of aggregate functions are read by code that trusts them."""
        for operand in operands:
            if operand["type"] == "Literal":
                self._type(str(operand.get("value")))

    def _type(self, name: str) -> None:
        if "aggregatefunction" in name.lower():
            raise Refused("ACCESS_DENIED", "states of aggregate functions are not accepted")

    def _named_function(self, node: Node) -> None:
        """`arrayReduce('sum', …)`: what it names may have parameters behind it."""
        first: Node = next(iter((node.get("arguments") or {}).get("children", ())), {})
        value = first.get("value") or {}
        named = value.get("value") if first.get("type") == "Literal" and value.get("field_type") == "String" else None
        if not isinstance(named, str) or not self._rules.allows_function(named.split("(")[0].strip()):
            raise Refused("ACCESS_DENIED", f"what {node['name']} names is not accepted")

    def _function_name(self, name: str) -> None:
        if not self._rules.allows_function(name):
            raise Refused("ACCESS_DENIED", f"function {name} is not accepted")

    def _identifier(self, node: Node) -> None:
        self._name_of_a_value(node["name"])

    def _name_of_a_value(self, name: str) -> None:
        """Where a function is expected, its bare name is one: `arrayMap(file, …)`."""
        if name.lower() in self._rules.known_functions and not self._rules.allows_function(name):
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
        # `values('x UInt8', …)`: what follows the structure is what it says.
        self._types_in((node.get("arguments") or {}).get("children", ())[:1])

    # -- the rest -------------------------------------------------------------------------------------------------

    def _settings(self, node: Node) -> None:
        for change in node.get("changes", ()):
            if change["name"] not in self._rules.settings:
                raise Refused("SETTING_CONSTRAINT_VIOLATION", f"setting {change['name']} cannot be set here")

    def _format(self, node: Node) -> None:
        if (asked := node.get("format_ast")) is not None:
            self._rules.format_of(asked["name"])
