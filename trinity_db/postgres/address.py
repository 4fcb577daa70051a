"""Server addresses without passwords, for display, in every form that libpq accepts.

TRINITY_DB_URL is a URL, or keys and values. The displayed form is built only from its non-secret parts. If
those cannot be separated reliably, nothing of it is shown.
"""

import re
from urllib.parse import quote

import psycopg
from psycopg.conninfo import conninfo_to_dict

UNCLEAR = "an address whose parts are unclear"
SECRETS = frozenset(
    option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults() if option.dispchar == b"*"
)
"""Parameters that libpq does not show: password, sslpassword and similar."""


def shown(address: str) -> str:
    """Return user, hosts, ports and database of an address as a URL, with `***` in place of a password."""
    parts = _clear_parts(address)
    if parts is None:
        return UNCLEAR
    hosts, ports = (parts.get(key, "").split(",") for key in ("host", "port"))
    hosts = parts["hostaddr"].split(",") if hosts == [""] and "hostaddr" in parts else hosts
    folders = [host for host in hosts if host.startswith(("/", "@"))]
    ports += ports[-1:] * (len(hosts) - len(ports))
    servers = [
        (f"[{host}]" if ":" in host else host) + (f":{port}" if port else "")
        for host, port in zip(hosts, ports, strict=False)
    ]
    user = quote(parts.get("user", ""), safe="") + (":***" if "password" in parts else "")
    query = [f"{key}={value}" for key, value in (("service", parts.get("service")),) if value]
    if folders:
        query += [f"host={','.join(hosts)}", *([f"port={','.join(ports)}"] if any(ports) else [])]
    authority = "" if folders else ",".join(servers)
    name = f"/{quote(parts['dbname'])}" if "dbname" in parts else "/" if query else ""
    return f"postgresql://{user}{'@' if user else ''}{authority}{name}{'?' if query else ''}{'&'.join(query)}"


def reason(error: Exception, address: str) -> str:
    """Return the error of libpq or the server in one line, without any part of a password."""
    if isinstance(error, UnicodeError):
        return "it holds bytes that are not UTF-8"
    text = str(error).strip()
    parts = _clear_parts(address)
    secrets = [parts[key] for key in SECRETS & parts.keys()] if parts else []
    if parts is None or any(secret in text for secret in secrets):
        # Parts of the address are quoted, and may contain quotes and line ends themselves.
        text = re.sub(r"[\"'].*", "***", text, flags=re.DOTALL)
        text += "; in a URL, write @ : / ? # % of a password as %40 %3A %2F %3F %23 %25"
    return (text.splitlines() or [type(error).__name__])[0]


def _clear_parts(address: str) -> dict[str, str] | None:
    """Parse keys and values of an address; None if one may contain part of an unescaped password."""
    try:
        parts = {key: str(value) for key, value in conninfo_to_dict(address).items() if value}
    except (psycopg.ProgrammingError, UnicodeError):
        return None
    if address.startswith(("postgresql://", "postgres://")):
        before, at, after = address.partition("://")[2].partition("@")
        if at and ("/" in before or "@" in after):
            return None
    looks_like_more = (
        "@" in parts.get("host", "").lstrip("@"),  # a host that begins with @ is an abstract socket
        "@" in parts.get("hostaddr", ""),
        "@" in parts.get("dbname", "") or "://" in parts.get("dbname", ""),
        ":" in parts.get("user", ""),
        not re.fullmatch(r"[0-9, ]*", parts.get("port", "")),
    )
    return None if any(looks_like_more) else parts
