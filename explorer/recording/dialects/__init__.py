"""The dialects that the recording endpoint speaks, one a file."""

from trinity_db.explorer.recording.dialects.chat import CHAT
from trinity_db.explorer.recording.dialects.completions import COMPLETIONS
from trinity_db.explorer.recording.dialects.dialect import Dialect
from trinity_db.explorer.recording.dialects.messages import MESSAGES
from trinity_db.explorer.recording.dialects.responses import RESPONSES

DIALECTS: tuple[Dialect, ...] = (CHAT, COMPLETIONS, RESPONSES, MESSAGES)
