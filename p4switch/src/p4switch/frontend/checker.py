"""Checks a whole program in order of declaration."""

from __future__ import annotations

from p4switch.frontend import ast
from p4switch.frontend.check_aggregate import check_list, check_mask, check_range, check_struct
from p4switch.frontend.check_block import check_control, check_parser, check_value_set
from p4switch.frontend.check_call import check_call
from p4switch.frontend.check_context import CheckContext, CheckRules
from p4switch.frontend.check_decl import (
    check_constant,
    check_enum,
    check_error_decl,
    check_match_kind,
    check_struct_decl,
    check_typedef,
    check_variable,
)
from p4switch.frontend.check_expr import (
    check_bool,
    check_default,
    check_dots,
    check_index,
    check_int,
    check_invalid,
    check_name,
    check_slice,
    check_string,
    check_type_expr,
)
from p4switch.frontend.check_function import check_action, check_extern, check_function, check_package
from p4switch.frontend.check_instantiation import check_instantiation
from p4switch.frontend.check_member import check_member
from p4switch.frontend.check_operators import check_binary, check_cast, check_ternary, check_unary
from p4switch.frontend.check_table import check_table
from p4switch.frontend.checked_program import CheckedProgram
from p4switch.frontend.source import AbortError, Reporter
from p4switch.recursion import deep_recursion

RULES = CheckRules(
    expressions={
        ast.IntLiteral: check_int,
        ast.BoolLiteral: check_bool,
        ast.StringLiteral: check_string,
        ast.Name: check_name,
        ast.TypeExpr: check_type_expr,
        ast.Member: check_member,
        ast.Index: check_index,
        ast.Slice: check_slice,
        ast.Call: check_call,
        ast.Unary: check_unary,
        ast.Binary: check_binary,
        ast.Ternary: check_ternary,
        ast.Cast: check_cast,
        ast.ListExpr: check_list,
        ast.StructExpr: check_struct,
        ast.InvalidExpr: check_invalid,
        ast.DotsExpr: check_dots,
        ast.DefaultExpr: check_default,
        ast.Mask: check_mask,
        ast.Range: check_range,
    },
    declarations={
        ast.Constant: check_constant,
        ast.VariableDecl: check_variable,
        ast.Instantiation: check_instantiation,
        ast.StructDecl: check_struct_decl,
        ast.EnumDecl: check_enum,
        ast.ErrorDecl: check_error_decl,
        ast.MatchKindDecl: check_match_kind,
        ast.TypedefDecl: check_typedef,
        ast.FunctionDecl: check_function,
        ast.ExternDecl: check_extern,
        ast.PackageDecl: check_package,
        ast.ActionDecl: check_action,
        ast.TableDecl: check_table,
        ast.ValueSetDecl: check_value_set,
        ast.ParserDecl: check_parser,
        ast.ControlDecl: check_control,
    },
)
"""Every expression but a keyset's tuple, and every declaration but parts of others."""


@deep_recursion()
def check_program(program: ast.Program, reporter: Reporter) -> CheckedProgram:
    """Type-check a program. CompileError with all diagnostics when anything is wrong."""
    ctx = CheckContext(reporter, RULES)
    for decl in program.declarations:
        ctx.where = "top"
        ctx.in_parser = False
        try:
            ctx.declaration(decl)
        except AbortError:
            continue
    reporter.raise_if_errors()
    return CheckedProgram(program, ctx.facts, ctx.scopes[0], tuple(ctx.errors), reporter)
