"""The dialects of the recording endpoint, one per file."""

from trinity_db.explorer.http.dialects.chat import CHAT
from trinity_db.explorer.http.dialects.completions import COMPLETIONS
from trinity_db.explorer.http.dialects.dialect import AgentDialect
from trinity_db.explorer.http.dialects.messages import MESSAGES
from trinity_db.explorer.http.dialects.responses import RESPONSES

DIALECTS: tuple[AgentDialect, ...] = (CHAT, COMPLETIONS, RESPONSES, MESSAGES)
