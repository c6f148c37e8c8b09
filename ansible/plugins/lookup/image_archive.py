# nodegauge: Apache-2.0, see LICENSE
"""Which images an archive holds, so that a node loads it only if one is missing there."""

from __future__ import annotations

DOCUMENTATION = r"""
name: image_archive
short_description: Names and digests of the images in an archive
version_added: 0.1.0
description:
  - Reads C(index.json) of OCI image layouts in a tar file, as C(make images), C(skopeo), C(podman save) and
    newer versions of C(docker save) write them.
  - The role P(nodegauge.gpu.operator#role) uses it.
options:
  _terms:
    description: Paths of archives on the controller, plain or compressed.
    type: list
    elements: path
    required: true
author:
  - nodegauge contributors (@nodegauge)
"""

EXAMPLES = r"""
- name: Show what an archive holds
  ansible.builtin.debug:
    msg: "{{ query('nodegauge.gpu.image_archive', 'dist/images/nodegauge-operator-0.1.0-amd64.tar') }}"
"""

RETURN = r"""
_raw:
  description: For each image its C(archive), C(name) and C(digest).
  type: list
  elements: dict
  sample:
    - archive: /images/nodegauge-operator-0.1.0-amd64.tar
      name: localhost/nodegauge/operator:0.1.0
      digest: sha256:3f1c
"""

import json
import tarfile
from collections.abc import Iterator
from typing import Any

from ansible.errors import AnsibleLookupError
from ansible.plugins.lookup import LookupBase

NAMES = ("io.containerd.image.name", "org.opencontainers.image.ref.name")
"""Annotations with the image's name; containerd's comes first, as in `ctr images import`."""
INDEX = "index.json"


class LookupModule(LookupBase):
    """One entry for each image of each archive."""

    def run(self, terms: list[str], variables: Any = None, **kwargs: Any) -> list[dict[str, str]]:
        self.set_options(var_options=variables, direct=kwargs)
        entries = []
        for term in terms:
            path = self.find_file_in_search_path(variables, "files", term, ignore_missing=True)
            if path is None:
                raise AnsibleLookupError(f"The archive {term} does not exist on the controller.")
            images = list(images_of(path))
            if not images:
                raise AnsibleLookupError(
                    f"{path} names no image. Write it again as an OCI archive with a name, for example by "
                    "`skopeo copy docker://IMAGE oci-archive:FILE:IMAGE`."
                )
            entries += images
        return entries


def images_of(path: str) -> Iterator[dict[str, str]]:
    """The named images of an archive."""
    for entry in index_of(path).get("manifests", []):
        annotations = entry.get("annotations") or {}
        name = next((annotations[key] for key in NAMES if annotations.get(key)), None)
        if name:
            yield {"archive": path, "name": name, "digest": entry["digest"]}


def index_of(path: str) -> dict[str, Any]:
    """The archive's index.json, or AnsibleLookupError."""
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                if member.name.removeprefix("./") == INDEX and (content := archive.extractfile(member)):
                    index: dict[str, Any] = json.load(content)
                    return index
    except (OSError, tarfile.TarError, ValueError) as error:
        raise AnsibleLookupError(f"{path} cannot be read as an archive of images: {error}") from error
    raise AnsibleLookupError(
        f"{path} has no {INDEX}: it is no OCI archive. Write it with "
        "`skopeo copy docker://IMAGE oci-archive:FILE:IMAGE`."
    )
