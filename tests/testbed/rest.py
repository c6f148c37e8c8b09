"""A few plain calls to an API server, for the testbed itself and for tests that must not depend on ours."""

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import urllib3

from testbed.errors import ApiError, TestbedError
from testbed.kubeconfig import read_kubeconfig
from testbed.wait import wait_for

Object = dict[str, Any]

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON = "application/json"
TIMEOUT_SECONDS = 15.0
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


class Rest:
    def __init__(self, server: str, *, authority: str, token: str) -> None:
        self._server, self._authority, self._token = server, authority, token
        self._pool = _pool(authority)

    @classmethod
    def of(cls, kubeconfig: Path) -> Self:
        return cls(**read_kubeconfig(kubeconfig))

    def with_token(self, token: str) -> "Rest":
        return Rest(self._server, authority=self._authority, token=token)

    def get(self, path: str) -> Object:
        return self.call("GET", path)

    def find(self, path: str) -> Object:
        try:
            return self.get(path)
        except ApiError as error:
            if error.status == 404:
                return {}
            raise

    def serves(self, *collections: str) -> bool:
        try:
            return all("items" in self.get(path) for path in collections)
        except ApiError:
            return False

    def served(self, group: str, resources: str) -> str:
        """Path of the version that the API server prefers among those of the group which have them."""
        for version in self.get(f"/apis/{group}")["versions"]:
            path = f"/apis/{version['groupVersion']}"
            if any(one["name"] == resources for one in self.get(path)["resources"]):
                return path
        raise TestbedError(f"this API server serves no {resources}.{group}")

    def create(self, path: str, body: Object) -> Object:
        return self.call("POST", path, body=body)

    def define(self, *crds: Object) -> None:
        """Create CRDs, and return when each of their versions is served: that comes some moments later."""
        paths = []
        for crd in crds:
            spec = self.create(CRDS, crd)["spec"]
            served = [version["name"] for version in spec["versions"] if version["served"]]
            paths += [f"/apis/{spec['group']}/{version}/{spec['names']['plural']}" for version in served]
        wait_for(lambda: self.serves(*paths), what=f"{len(crds)} new CRDs served")

    def patch(self, path: str, body: Object | list[Object], *, content_type: str = MERGE) -> Object:
        return self.call("PATCH", path, body=body, content_type=content_type)

    def delete(self, path: str, body: Object | None = None) -> Object:
        return self.call("DELETE", path, body=body)

    def call(
        self,
        method: str,
        path: str,
        *,
        body: Object | list[Object] | None = None,
        content_type: str = JSON,
        headers: Mapping[str, str] | None = None,
    ) -> Object:
        """One request. ApiError for a status of 400 and above, ConnectionError when there is no answer."""
        response = self._request(
            method,
            path,
            body=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": content_type, **(headers or {})},
            retries=urllib3.Retry(connect=0, read=int(method == "GET"), redirect=0, other=0),
        )
        if response.status >= 400:
            raise ApiError.of(response.status, response.data)
        try:
            answer: Object = json.loads(response.data)
        except ValueError:
            answer = {"message": response.data.decode("utf-8", errors="replace").strip()}
        return answer

    def stream(self, path: str) -> urllib3.BaseHTTPResponse:
        timeout = urllib3.Timeout(connect=TIMEOUT_SECONDS, read=None)
        response = self._request("GET", path, preload_content=False, timeout=timeout)
        if response.status >= 400:
            raise ApiError.of(response.status, response.data)
        return response

    def _request(
        self, method: str, path: str, *, headers: Mapping[str, str] | None = None, **how: Any
    ) -> urllib3.BaseHTTPResponse:
        own = {"User-Agent": "nodegauge-testbed", "Authorization": f"Bearer {self._token}"}
        sent = {"Accept": JSON, **own, **(headers or {})}
        try:
            return self._pool.request(method, self._server + path, headers=sent, **how)
        except urllib3.exceptions.HTTPError as error:
            raise ConnectionError(f"{method} {path}: no valid answer ({error})") from error


@functools.cache
def _pool(authority: str) -> urllib3.PoolManager:
    return urllib3.PoolManager(ca_cert_data=authority, timeout=TIMEOUT_SECONDS, maxsize=16)
