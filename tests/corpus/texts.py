"""Texts that once caused a traceback, a hang or a page of output, and similar ones."""

from __future__ import annotations

LONG = "9" * 5000
BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGES = "a: &a {x: 1}\n" + "".join(
    f"{name}: &{name} {{<<: [{', '.join([f'*{before}'] * 9)}]}}\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)

VALUES = [
    *(
        "2024-99-99",
        "2024-13-45T99:99:99Z",
        "!!int x",
        "!!int ''",
        "!!float x",
        "!!bool x",
        "!!timestamp x",
        "!!binary x",
    ),
    *("!!null x", "!!set {1, 2}", "!!omap [1]", "!!pairs [1]", "!!str [1]", "!!seq x", "!!map x", "!!python/none x"),
    *("!x y", "&a [*a]", "*a", "{? [1]: 2}", "{1: 2}", "{null: 2}", "{2024-01-01: 2}", "{true: 1}", "<<: 1", "{<<: 1}"),
    *("[" * 2000, "{a: " * 2000, "[" * 30 + "]" * 30, LONG, "-" + LONG, LONG + ".5", "0x" + "f" * 5000, "1e" + LONG),
    *(
        "1e999",
        "-1e999",
        ".inf",
        ".nan",
        "0b" + "1" * 5000,
        "1:" * 3000 + "1",
        "1_" * 3000,
        "\x00",
        "\x1b[31m",
        "\ud800",
    ),
    *(
        "a\u2028b",
        "x" * 10**5,
        "a b " * 10**5,
        "'",
        '"',
        '"\\0"',
        "- - - -",
        "?",
        ": ",
        "%YAML 9.9",
        "--- a\n--- b",
        "\t",
        "@x",
    ),
    *("`x`", "|", ">", "{", "}", "[1", "a: b: c", "\N{SNOWMAN}" * 300, "０１", "١٢", "²"),
]
RECIPES = [
    *(f"lr: {value}\n" for value in VALUES),
    *(f"{value}: 1\n" for value in ("1", "2024-01-01", "null", "true", "1.5", "[a]", "{a: b}", "?", "x" * 3000, LONG)),
    *(f"{field}: {{1: 2}}\n" for field in ("data", "deploy", "method", "split", "parts", "workers")),
    *(
        f"{field}: {LONG}\n"
        for field in ("rounds", "clients", "seed", "epochs", "batch", "fraction", "workers", "data")
    ),
    *(f"{field}: {'9' * 20}\n" for field in ("rounds", "clients", "epochs", "batch", "workers", "eval_every", "stack")),
    *(
        f'{field}: "a\\0b"\n'
        for field in ("name", "out", "init", "data", "model", "method", "split", "device", "track")
    ),
    *(f'{field}: "\\ud800"\n' for field in ("name", "out", "init", "data", "model", "method", "split")),
    *(f"{field}: {'x' * 5000}\n" for field in ("name", "out", "init", "data", "model", "schedule", "device", "track")),
    *(f"{field}: [[[[]]]]\n" for field in ("name", "out", "init", "data", "parts", "deploy", "batch")),
    *(f"a: 1\n{document}" for document in (BOMB, MERGES)),
    *(f"{document}lr: *i\n" for document in (BOMB, MERGES)),
    *(
        "",
        "\x00",
        "text",
        "- a\n- b\n",
        "3",
        "a",
        "schedule: exp:" + "1" * 4000 + "x\n",
        "data: {normalize: [[1], [1e999]]}\n",
    ),
]
METHODS = [
    *(f"prox(mu={value})" for value in VALUES),
    *(f"prox({value}=1)" for value in ("", "1", "x" * 5000, "\x00", "mu mu", "mu.x")),
    *(
        LONG,
        "prox" + LONG,
        "(",
        ")",
        "prox(",
        "prox)",
        "prox(mu=1",
        "+",
        "fedavg+",
        " + ".join(["prox"] * 500),
        "p" * 10**5,
    ),
    *(
        "prox(mu={a: {b: {c: d}}})",
        "dp(" + LONG + ")",
        'prox(mu="',
        "prox(mu=1, mu=2)",
        "\x00",
        "\N{SNOWMAN}",
        "prox(mu=0x1F)",
    ),
]
SPLITS = [
    *(f"{name}:{value}" for name in ("shards", "dirichlet", "quantity", "noise", "rotate") for value in VALUES[24:44]),
    *(f"iid; {value}: shards:2" for value in (LONG, "0", "-1", "1e3", "²", "٣", "9" * 19, "")),
    *(
        ":" * 1000,
        "+" * 1000,
        ";" * 1000,
        "x" * 10**5,
        "shards",
        "shards:",
        "shards::",
        "shards:2:2:2",
        "file:",
        "\x00",
    ),
    *("file:" + "x" * 5000, "file:a\0b", "file:/dev/zero", "file:.", f"noise:0.{LONG}", "shards:٣", "dirichlet:nan"),
]
PATHS = ["x" * 300, "a\0b", "~nobody-is-called-that/x", "loop", "pipe"]
