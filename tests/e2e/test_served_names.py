"""--served-model-name: every name works, the first is the one that answers give."""

from pathlib import Path

import httpx

from tests.nodes import RunningNode
from tests.waiting import LIMIT_S


def test_a_model_is_served_under_all_its_names(tmp_path: Path) -> None:
    with RunningNode(tmp_path / "node", "--engine", "fake", "--served-model-name", "first/name", "second") as node:
        with httpx.Client(base_url=node.url, timeout=LIMIT_S, trust_env=False) as client:
            listed = client.get("/v1/models").json()["data"]
            assert [(model["id"], model["root"]) for model in listed] == [
                ("first/name", "smollm2-135m"),
                ("second", "smollm2-135m"),
            ]
            assert client.get("/v1/models/first/name").json()["id"] == "first/name"
            for name in ("first/name", "second"):
                answer = client.post("/v1/completions", json={"model": name, "prompt": "x", "max_tokens": 3})
                assert (answer.status_code, answer.json()["model"]) == (200, "first/name")
            refused = client.post("/v1/completions", json={"model": "smollm2-135m", "prompt": "x"})
            assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")
