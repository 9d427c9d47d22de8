"""Commands to copy, by the command that they show: the end of every `--help`, and docs/cli.md."""

from __future__ import annotations

EXAMPLES: dict[str, tuple[str, ...]] = {
    "fedloom": (
        'fedloom run --method "scaffold + fn" --name first',
        'fedloom compare --methods "fedavg; fn; dr + fd" --seeds 3',
        "fedloom report runs/first -o report.html",
        "fedloom list methods",
        "fedloom --install-completion",
    ),
    "run": (
        "fedloom run --rounds 20 --name first",
        'fedloom run --method "prox(mu=0.1) + fn" --split dirichlet:0.3',
        "fedloom run recipe.yaml --lr 0.03 --set data.validation=0.1",
        "fedloom run --protocol fedbabu --method fn",
        "fedloom run --resume runs/first",
    ),
    "compare": (
        'fedloom compare --methods "fedavg; fn @ lr=0.3; dr + fd" --seeds 3',
        "fedloom compare --tuned runs/tuning --seeds 5",
    ),
    "sweep": (
        "fedloom sweep --over lr=0.01,0.03,0.1 --over epochs=1,5",
        'fedloom sweep --over split=shards:2,dirichlet:0.3 --methods "fedavg; fn"',
    ),
    "tune": (
        'fedloom tune --methods "fedavg; prox(mu=?); dr + fd(beta=?)" --trials 16',
        "fedloom tune --methods scaffold --over lr=log:0.003..3 --budget 2h",
    ),
    "reproduce": (
        "fedloom reproduce list",
        "fedloom reproduce list fedbabu/table5",
        'fedloom reproduce fedbabu/table5 --cells "s=10, tau=1" --plan',
        "fedloom reproduce fedbabu/table5 --methods fedavg,fedbabu --scale 0.25",
    ),
    "report": (
        "fedloom report runs/a runs/b -o report.html",
        "fedloom report runs/sweep --format svg -o figures",
    ),
    "watch": ("fedloom watch runs", "fedloom watch runs/x --port 0"),
    "analyze": (
        "fedloom analyze runs/x",
        "fedloom analyze runs/x --what drift,collapse --clients 0,3,7",
    ),
    "personalize": (
        "fedloom personalize runs/x",
        "fedloom personalize runs/a runs/b --part full,head --epochs 1,5,10",
    ),
    "adopt": ("fedloom adopt runs/x --data site.npz --out client.safetensors",),
    "export": (
        "fedloom export runs/x -o model.onnx",
        "fedloom export runs/x --client 3 --epochs 5 -o client3.pt2",
    ),
    "list": (
        "fedloom list",
        "fedloom list methods",
        "fedloom list methods scaffold",
        "fedloom list models --json",
    ),
    "recipe": (
        "fedloom recipe --explain",
        "fedloom recipe --explain data.validation",
        "fedloom recipe --method fn --rounds 20 > recipe.yaml",
    ),
    "split": (
        "fedloom split --split dirichlet:0.3 --clients 20",
        "fedloom split --split shards:2 --picture split.svg -o split.npz",
        "fedloom split --from runs/x",
    ),
    "bench": ("fedloom bench --only lenet --seconds 10",),
    "flower init": (
        "fedloom flower init app recipe.yaml",
        "fedloom flower init app recipe.yaml --sites --roster roster.json",
    ),
    "flower sites": ("fedloom flower sites data recipe.yaml",),
    "flower plan": (
        "fedloom flower plan recipe.yaml",
        "fedloom flower plan recipe.yaml --shape 1x28x28 --classes 10",
    ),
    "flower certs": ("fedloom flower certs keys --nodes 3",),
    "flower roster": ("fedloom flower roster roster.json site-0.pub site-1.pub",),
    "flower check": ("fedloom flower check roster.json site-0.key",),
    "flower personalize": ("fedloom flower personalize state --epochs 5",),
}
