"""Schemas in the styles of tool parameters, configuration files and published schemas, with answers and other texts."""

from __future__ import annotations

from typing import Any, NamedTuple


class Case(NamedTuple):
    """A schema, texts that answers may be, and texts that are not valid."""

    schema: Any
    good: tuple[str, ...]
    bad: tuple[str, ...]


TEXT, WHOLE, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}
DRAFT_4 = "http://json-schema.org/draft-04/schema#"
TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"v": WHOLE, "sub": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
            "required": ["v"],
        }
    },
}
CAT = {
    "type": "object",
    "properties": {"kind": {"const": "cat"}, "lives": WHOLE},
    "required": ["kind", "lives"],
}
DOG = {"type": "object", "properties": {"kind": {"const": "dog"}, "name": TEXT}, "required": ["kind", "name"]}

CASES: dict[str, Case] = {
    # Numbers
    "unit interval": Case(
        {"type": "number", "minimum": 0, "maximum": 1},
        ("0", "1", "0.5", "1.0", "0.000001"),
        ("-0.1", "1.1", "1.000001", "2", "01"),
    ),
    "exclusive bounds": Case(
        {"type": "number", "exclusiveMinimum": -1.5, "exclusiveMaximum": 0.25},
        ("-1.499", "-1", "0", "0.249999"),
        ("-1.5", "-1.50", "0.25", "0.250", "1"),
    ),
    "safe integers": Case({"type": "integer", "maximum": 9007199254740991}, ("7", "-7"), ("9007199254740992",)),
    "draft 4 bounds": Case(
        {"$schema": DRAFT_4, "type": "number", "minimum": 0, "exclusiveMinimum": True},
        ("0.1", "3"),
        ("0", "0.0", "-1"),
    ),
    "even": Case({"type": "integer", "multipleOf": 2, "minimum": 3}, ("4", "128"), ("2", "5", "127")),
    "cents": Case({"type": "number", "multipleOf": 0.01}, ("19", "-2"), ("0.005",)),
    "several multiples": Case(
        {"allOf": [{"type": "integer", "multipleOf": 4}, {"multipleOf": 6}]}, ("24", "0"), ("4", "6", "18")
    ),
    "large multiples": Case({"type": "integer", "multipleOf": 86400}, ("86400", "0"), ("86401",)),
    # Strings
    "pattern and length": Case(
        {"type": "string", "pattern": "^[a-z]+$", "minLength": 2, "maxLength": 4},
        ('"ab"', '"abcd"'),
        ('"a"', '"abcde"', '"AB"'),
    ),
    "ending": Case({"type": "string", "pattern": "\\.json$"}, ('".json"', '"a.json"'), ('"a.json5"', '"ajson"')),
    "alternatives with anchors": Case(
        {"type": "string", "pattern": "(^a$|^b+$)"}, ('"a"', '"bb"'), ('"ab"', '"c"', '""')
    ),
    "lookahead": Case(
        {"type": "string", "pattern": "^(?!con$)(?=[a-z])[a-z0-9]{2,5}$"}, ('"conx"', '"a1"'), ('"con"', '"1a"')
    ),
    "long text": Case({"type": "string", "maxLength": 4096}, ('"abc"',), ('"' + "a" * 4097 + '"',)),
    "format and length": Case(
        {"type": "string", "format": "email", "maxLength": 9}, ('"a@bc.de"',), ('"abc@def.gh"', '"abc"')
    ),
    "annotated formats": Case({"type": "string", "format": "int32"}, ('"a"',), ("1",)),
    "addresses": Case(
        {"type": "array", "items": {"anyOf": [{"type": "string", "format": name} for name in ("ipv4", "ipv6")]}},
        ('["127.0.0.1"]', '["::1"]', '["1:2:3:4:5:6:7:8"]'),
        ('["256.0.0.1"]', '["1:2"]', '["1::2::3"]'),
    ),
    "uri": Case(
        {"type": "string", "format": "uri"}, ('"https://a.de/b?c=d#e"',), ('"a b"', '"/b"', '"https://a b"')
    ),
    "not a string": Case(
        {"type": "string", "not": {"enum": ["none", "all"]}}, ('"some"', '"non"'), ('"none"', '"all"')
    ),
    "not a pattern": Case({"type": "string", "not": {"pattern": "^-"}}, ('"a-"',), ('"-a"',)),
    # Objects
    "any object": Case({"type": "object"}, ("{}", '{"a":[1]}'), ("[]",)),
    "no parameters": Case({"type": "object", "properties": {}}, ("{}",), ('{"a":',)),
    "required alone": Case({"type": "object", "required": ["id"]}, ('{"id":1}', '{"id":"x","b":2}'), ("{}", '{"b":2}')),
    "extra properties": Case(
        {"type": "object", "properties": {"a": WHOLE}, "additionalProperties": TEXT},
        ('{"a":1,"b":"c"}', '{"b":"c"}'),
        ('{"a":"b"}', '{"a":1,"b":2}'),
    ),
    "patterned properties": Case(
        {
            "type": "object",
            "properties": {"a": WHOLE},
            "patternProperties": {"^x-": TEXT, "^n": NUMBER},
            "additionalProperties": False,
        },
        ('{"a":1,"x-b":"c"}', '{"n1":2.5}', "{}"),
        ('{"b":1}', '{"x-b":1}', '{"n":"m"}', '{"a":"b"}'),
    ),
    "listed and patterned": Case(
        {"type": "object", "properties": {"x-a": {"minLength": 2}}, "patternProperties": {"^x-": TEXT}},
        ('{"x-a":"bc"}',),
        ('{"x-a":"b"}', '{"x-a":12}'),
    ),
    "names": Case(
        {"type": "object", "propertyNames": {"pattern": "^[a-z]+$", "maxLength": 3}, "additionalProperties": WHOLE},
        ('{"abc":1}', "{}"),
        ('{"A":1}', '{"abcd":1}'),
    ),
    "at least one": Case(
        {"type": "object", "properties": {"a": WHOLE, "b": WHOLE, "c": WHOLE}, "minProperties": 2, "maxProperties": 2},
        ('{"a":1,"c":2}', '{"b":1,"c":2}'),
        ("{}", '{"a":1}', '{"a":1,"b":2,"c":3}'),
    ),
    "some environment": Case(
        {"type": "object", "additionalProperties": TEXT, "minProperties": 1, "maxProperties": 2},
        ('{"A":"b"}', '{"A":"b","C":"d"}'),
        ("{}", '{"A":1}', '{"A":"b","C":"d","E":"f"}'),
    ),
    "dependent names": Case(
        {"type": "object", "properties": {"card": WHOLE, "cvc": WHOLE}, "dependentRequired": {"card": ["cvc"]}},
        ("{}", '{"cvc":1}', '{"card":1,"cvc":2}'),
        ('{"card":1}',),
    ),
    "dependencies": Case(
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "object",
            "properties": {"a": WHOLE, "b": WHOLE},
            "dependencies": {"a": ["b"], "b": {"properties": {"b": {"minimum": 3}}}},
        },
        ("{}", '{"b":3}', '{"a":1,"b":4}'),
        ('{"a":1}', '{"a":1,"b":2}'),
    ),
    "many properties": Case(
        {"type": "object", "properties": {f"p{at:03}": WHOLE for at in range(150)}},
        ("{}", '{"p003":1,"p149":2}'),
        ('{"p003":1,"p003":"x"}', '{"p150":1}'),
    ),
    "closed by unevaluatedProperties": Case(
        {
            "allOf": [{"type": "object", "properties": {"a": WHOLE}}],
            "properties": {"b": WHOLE},
            "unevaluatedProperties": False,
        },
        ('{"b":1,"a":2}', "{}"),
        ('{"c":1}',),
    ),
    "closed before others": Case(
        {
            "allOf": [
                {"type": "object", "properties": {"a": WHOLE}, "unevaluatedProperties": False},
                {"properties": {"b": WHOLE}},
            ]
        },
        ('{"a":1}', "{}"),
        ('{"b":1}', '{"a":1,"b":2}'),
    ),
    # Arrays
    "tuple of draft 4": Case(
        {"$schema": DRAFT_4, "type": "array", "items": [TEXT, WHOLE], "additionalItems": False},
        ('["a",1]',), ('[1,"a"]', '["a",1,2]')
    ),
    "tuple with a rest": Case(
        {"type": "array", "prefixItems": [TEXT], "items": WHOLE, "minItems": 2}, ('["a",1]', '["a",1,2]'), ('["a"]',)
    ),
    "different tags": Case(
        {"type": "array", "items": TEXT, "uniqueItems": True, "minItems": 1},
        ('["b"]', '["alpha", "beta"]', '["1","a"]'),
        ('["a","a"]', "[]"),
    ),
    "different values": Case(
        {"type": "array", "items": {"enum": ["read", "write", 3]}, "uniqueItems": True, "maxItems": 2},
        ("[]", '["read",3]', '["read","write"]'),
        ('["read","read"]', '["read","write",3]'),
    ),
    "different objects": Case({"type": "array", "uniqueItems": True, "items": CAT}, ("[]",), ('[{"kind":"cat"}]',)),
    "containing": Case(
        {"type": "array", "items": WHOLE, "contains": {"const": 7}}, ("[7]", "[7,1]"), ("[]", "[1]", '[7,"a"]')
    ),
    # Combinations
    "tagged union": Case(
        {"oneOf": [{"$ref": "#/$defs/C"}, {"$ref": "#/$defs/D"}], "$defs": {"C": CAT, "D": DOG},
         "discriminator": {"propertyName": "kind", "mapping": {"cat": "#/$defs/C", "dog": "#/$defs/D"}}},
        ('{"kind":"cat","lives":9}', '{"kind":"dog","name":"x"}'),
        ('{"kind":"cat","name":"x"}', '{"kind":"cow"}'),
    ),
    "one of two types": Case({"oneOf": [TEXT, WHOLE, {"type": "null"}]}, ('"a"', "1", "null"), ("1.5", "[]")),
    "one of two names": Case(
        {
            "type": "object",
            "properties": {"path": TEXT, "url": TEXT},
            "oneOf": [{"required": ["path"]}, {"required": ["url"]}],
        },
        ('{"path":"a"}', '{"url":"b"}'),
        ("{}", '{"path":"a","url":"b"}'),
    ),
    "one of overlapping ranges": Case(
        {"oneOf": [{"type": "integer", "minimum": 0}, {"type": "integer", "maximum": 10}]},
        ("11", "-1"),
        ("0", "5", "10"),
    ),
    "merged": Case(
        {"allOf": [{"$ref": "#/definitions/a%20b"}, {"properties": {"c": {"maximum": 5}}, "required": ["c"]}],
         "definitions": {"a b": {"type": "object", "properties": {"c": {"type": "integer", "minimum": 2}}}}},
        ('{"c":2}', '{"c":5}'),
        ("{}", '{"c":1}', '{"c":6}'),
    ),
    "reference with siblings": Case(
        {"$ref": "#/$defs/n", "maximum": 9, "$defs": {"n": {"type": "integer", "minimum": 3}}}, ("3", "9"), ("2", "10")
    ),
    "conditional": Case(
        {
            "type": "object",
            "properties": {"kind": {"enum": ["file", "url"]}, "at": TEXT, "size": WHOLE},
            "required": ["kind"],
            "if": {"properties": {"kind": {"const": "file"}}},
            "then": {"required": ["size"]},
            "else": {"required": ["at"]},
        },
        ('{"kind":"file","size":1}', '{"kind":"url","at":"x"}'),
        ('{"kind":"file"}', '{"kind":"url","size":1}'),
    ),
    "chain of conditionals": Case(
        {
            "type": "object",
            "properties": {"k": {"enum": ["a", "b", "c"]}, "x": WHOLE, "y": WHOLE},
            "required": ["k"],
            "allOf": [
                {"if": {"properties": {"k": {"const": "a"}}, "required": ["k"]}, "then": {"required": ["x"]}},
                {"if": {"properties": {"k": {"const": "b"}}, "required": ["k"]}, "then": {"required": ["y"]}},
            ],
        },
        ('{"k":"a","x":1}', '{"k":"b","y":1}', '{"k":"c"}'),
        ('{"k":"a"}', '{"k":"b","x":1}'),
    ),
    "not null": Case({"not": {"type": ["null", "object"]}}, ("1", '"a"', "[]"), ("null", "{}")),
    "nested constants": Case(
        {"enum": [{"a": [1, None]}, "x", 2.5], "type": ["object", "number"]}, ('{"a": [1, null]}', "2.5"), ('"x"',)
    ),
    "listed within bounds": Case({"enum": [1, 5, 9], "minimum": 3, "not": {"const": 9}}, ("5",), ("1", "9")),
    "booleans": Case({"type": "object", "properties": {"a": True, "b": False}}, ("{}", '{"a":1}'), ('{"b":1}',)),
    "no type": Case({"properties": {"a": WHOLE}, "required": ["a"]}, ('{"a":1}',), ("{}", '{"a":"b"}')),
    "tree": Case(TREE, ('{"v":1,"sub":[{"v":2,"sub":[]}]}',), ('{"sub":[]}', '{"v":1,"sub":[1]}')),
    "anchor": Case({"$ref": "#n", "$defs": {"x": {"$anchor": "n", "type": "integer"}}}, ("1",), ('"a"',)),
    "annotations": Case(
        {"$id": "https://example.org/x", "id": "x", "x-order": 3, "type": "string", "nullable": True, "readOnly": True,
         "writeOnly": False, "deprecated": True, "$comment": "c", "examples": ["a"], "default": 1, "title": "T",
         "markdownDescription": "*x*", "contentEncoding": "base64"},
        ('"a"',),
        ("1", "null"),
    ),
    "required in the property": Case(
        {"type": "object", "properties": {"a": {"type": "integer", "required": True}, "b": WHOLE}},
        ('{"a":1}',),
        ("{}", '{"b":1}'),
    ),
    # A file
    "tsconfig": Case(
        {
            "allOf": [
                {"properties": {"compilerOptions": {"type": "object", "properties": {
                    "target": {"anyOf": [{"enum": ["es5", "es6"]}, {"pattern": "^[Ee][Ss]([356]|20(1[56789]))$"}]},
                    "strict": {"type": ["boolean", "null"], "default": False},
                    "lib": {"type": "array", "uniqueItems": True, "items": {"type": "string", "enum": ["dom", "es6"]}},
                }}}},
                {"properties": {"files": {"type": ["array", "null"], "uniqueItems": True, "items": TEXT}}},
                {"anyOf": [{"required": ["files"]}, {"required": ["compilerOptions"]}]},
            ],
            "type": "object",
        },
        ('{"compilerOptions":{"target":"es6","strict":null,"lib":["dom","es6"]},"files":["a.ts","b.ts"]}',),
        ("{}", '{"files":["a","a"]}', '{"compilerOptions":{"target":"es7"}}'),
    ),
}  # fmt: skip
