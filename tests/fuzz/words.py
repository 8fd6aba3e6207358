"""Lines that registries and their configuration files are made of, sound and hostile, for the mutators that work line by line."""

_ANSWERS = b"""
=== 200
=== 201
=== 202
=== 204
=== 206
=== 301
=== 302
=== 307
=== 400
=== 401
=== 403
=== 404
=== 413
=== 416
=== 429
=== 500
=== 503
Location: /v2/
Location: https://registry.example/v2/x
Location: //other/x
Location: http://registry.example/
Location: https://[
Location: https://u:p@registry.example/
Location: ?a=b
Location: file:///x
Location: https://registry.example:443/x
Location: https://registry.example:99999/
Location: \xc4\xb1
Location: ../..
Location:
WWW-Authenticate: Bearer realm="https://auth.example/t",service="s",scope="repository:a/b:pull"
WWW-Authenticate: Basic realm=x
WWW-Authenticate: Bearer realm="/t",error="insufficient_scope"
WWW-Authenticate: Bearer realm="http://auth.example/"
WWW-Authenticate: Negotiate
WWW-Authenticate: Bearer realm="https://[::1"
Retry-After: 0
Retry-After: 99999
Retry-After: Wed, 21 Oct 2015 07:28:00 GMT
Retry-After: -1
Content-Type: application/vnd.oci.image.manifest.v1+json
Content-Encoding: gzip
Content-Encoding: br
Content-Length: 5
ETag: x
Content-Range: bytes 0-49/150
Content-Range: bytes 50-149/150
Content-Range: bytes */150
Range: 0-999
Content-Range: bytes 5-4/*
Range: bytes=0-0
Range: 0-18446744073709551616
Link: </v2/a/b/tags/list?last=x>; rel=next
Link: <http://[>; rel=next
Docker-Content-Digest: sha256:0000000000000000000000000000000000000000000000000000000000000000
Docker-Upload-UUID: x
{"token":"t","expires_in":1e999}
{"access_token":"t"}
{"token":""}
{"errors":[{"code":"DENIED","message":"no\\u001b[2J"}]}
{"tags":["a","b",1]}
{"name":"x","tags":null}
"""
_LINES = b"""
[[registry]]
[[registry.mirror]]
[aliases]
[registries.search]
location = "docker.io"
location = "a.example.com/x"
prefix = "*.example.com"
prefix = "docker.io/library"
insecure = true
blocked = true
blocked = 1
mirror-by-digest-only = true
pull-from-mirror = "tag-only"
unqualified-search-registries = ["docker.io", "quay.io"]
short-name-mode = "enforcing"
"busybox" = "quay.io/x/busybox"
location = "http://x"
credential-helpers = ["x"]
location = "localhost:5000"
location = "[::1]:5000"
prefix = "*."
prefix = "busybox"
x = [[[
"""
ANSWERS = (*_ANSWERS.strip().split(b"\n"), b"", b"", b"Content-Length: " + b"9" * 5000, b"x" * 150, b"\x1f\x8b\x08\0")
LINES = (*_LINES.strip().split(b"\n"), b"unknown\x1b = 1", b'a = """')
