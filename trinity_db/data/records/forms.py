"""Conversions of data in the forms of other programs, and refusals.

The import prints the conversions of its rows, and the tables in docs/reference/imports.md are generated from
the ones here. Code that converts adds the conversion to the set of the row; a refusal gives the reason of a
rejected row.
"""

from dataclasses import dataclass

from trinity_db.data.records.records import Unfit

ROLES = ("system", "developer", "user", "assistant", "tool")
OTHER_ROLES = {
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "model": "assistant",
    "function": "tool",
    "observation": "tool",
    "tool_response": "tool",
}
"""Roles of other programs, and the role that each becomes. Other roles are left to the chat template."""
CALL_ROLES = ("function_call", "tool_call")
"""Roles of turns whose text is a tool call as JSON."""
MASKS = ("weight", "train", "loss")
"""Keys of a turn that determine whether it is trained."""
TEXT_PARTS = ("text", "input_text", "output_text")
"""Types of content parts that are text."""


@dataclass(frozen=True)
class Conversion:
    """A form that an import converts."""

    name: str
    input: str
    becomes: str


@dataclass(frozen=True)
class Refusal:
    """Data for which a row is rejected."""

    input: str
    reason: str
    """The printed reason, with a pair of braces for the name of each column."""

    def __call__(self, *columns: str) -> Unfit:
        """Return the error for columns of a row."""
        return Unfit(self.reason.format(*columns))


Conversions = set[Conversion]
"""The forms of one row."""


def _spelled(roles: dict[str, str]) -> str:
    """Write roles of other programs, by the role that they become."""
    return "; ".join(
        f"{', '.join(f'`{name}`' for name in roles if roles[name] == role)}"
        for role in dict.fromkeys(roles.values())
    )


JSON_TEXT = Conversion(
    "JSON as text",
    "messages, tools, `tool_calls` or `history` as JSON text, in any column that is read",
    "the value",
)
ONE_MESSAGE = Conversion(
    "one message", "an object with a role and content as `chosen`, `rejected` or response", "a list of it"
)
SHAREGPT = Conversion(
    "ShareGPT", "messages with `from` and `value`; `conversations`", "`role` and `content`; `messages`"
)
ROLE_NAMES = Conversion(
    "roles",
    f"{_spelled(OTHER_ROLES)}; capitals, as in `User`",
    f"{', '.join(f'`{role}`' for role in dict.fromkeys(OTHER_ROLES.values()))}; lower case",
)
CALL_TURNS = Conversion(
    "turns that are calls",
    f"{' or '.join(f'`{role}`' for role in CALL_ROLES)} as a role, with the call as JSON in the text",
    "an assistant turn with `tool_calls`; successive ones become one turn with parallel calls",
)
FUNCTION_CALL = Conversion(
    "function_call", "`function_call` in an assistant turn, OpenAI's older key", "`tool_calls` with one call"
)
FUNCTIONS = Conversion(
    "functions", "a column `functions`, OpenAI's older key", "`tools`, each of type `function`"
)
PARTS = Conversion("text parts", "content as a list of texts or text parts", "one text, joined by nothing")
NULL_CONTENT = Conversion(
    "content null", "content null or missing, with tool calls or a thought", "an empty text"
)
NO_ARGUMENTS = Conversion(
    "calls without arguments", "`arguments` that are null, missing or empty text", "`{}`"
)
RESULT_ORDER = Conversion(
    "order of results",
    "results of parallel calls in another order, with `tool_call_id`, or without and with `name`",
    "the order of the calls, which is all that many chat templates show",
)
MASK = Conversion(
    "masks",
    "`train` or `loss` in a turn of the assistant: true, false, 1 or 0",
    "`weight` 1 or 0: 0 is context only",
)
CUT_OFF = Conversion(
    "untrained end",
    "turns of the assistant with weight 0 after the last trained one",
    "left out, with all between",
)
ALPACA = Conversion(
    "Alpaca",
    "`instruction`, perhaps with `input` or `context`; `output` is the response",
    "a user's message: instruction, line break, input",
)
SYSTEM = Conversion(
    "system column", "`system` or `system_prompt` as text", "the first message, of the role `system`"
)
HISTORY = Conversion(
    "history column",
    "`history`: pairs of a question and its answer, or messages",
    "messages before the prompt, untrained",
)
REPEATED = Conversion(
    "repeated prompt",
    "the prompt again in `messages`, or at the beginning of both `chosen` and `rejected`",
    "one prompt",
)
SHARED = Conversion(
    "shared prompt",
    "`chosen` and `rejected` without a prompt",
    "their common beginning is the prompt: whole messages, or whole words of texts",
)
LAST_TURN = Conversion(
    "answer in messages", "`messages` of a task that end with the assistant's turn", "`answer`"
)

CONVERTED = (
    *(SHAREGPT, ALPACA, SYSTEM, HISTORY, FUNCTIONS, FUNCTION_CALL, CALL_TURNS, ROLE_NAMES, JSON_TEXT),
    *(ONE_MESSAGE, PARTS, NULL_CONTENT, NO_ARGUMENTS, RESULT_ORDER, MASK, CUT_OFF, REPEATED, SHARED),
    LAST_TURN,
)

TWO_COLUMNS = Refusal(
    "two columns with the same meaning, such as `messages` and `conversations`, without `--map`",
    "'{}' and '{}' have the same meaning; choose with --map",
)
TWO_PROMPTS = Refusal(
    "a prompt, instruction or history next to a conversation that does not contain it, without `--map`",
    "'{}' is not part of '{}'; choose with --map",
)
TREE = Refusal(
    "`text` next to `role` and `parent_id`: a turn of a tree of messages, such as OASST's, without `--map`",
    "'{}' is one turn of a conversation; join its turns to messages",
)
NOT_MESSAGES = Refusal("messages without a role", "'{}' must hold messages with 'role' and 'content'")
NO_CONTENT = Refusal(
    "content that is null without calls or a thought, or that has parts other than text, such as images",
    "'{}' holds a message whose 'content' is not text",
)
BROKEN_JSON = Refusal(
    "text that begins like messages and is not JSON, for example Python's `str()` of a list",
    "'{}' looks like messages, and is not JSON",
)
NO_CALL = Refusal(
    "a turn of the role `function_call` or `tool_call` whose text is not JSON",
    "'{}' holds a call that is not JSON",
)
TWO_CALLS = Refusal(
    "`function_call` and `tool_calls` in one turn", "'{}' holds a turn with 'function_call' and 'tool_calls'"
)
BAD_CALL = Refusal("a tool call without a name", "'{}' holds a tool call without a name")
OTHER_ARGUMENTS = Refusal(
    "a tool call without `arguments` that has another key, such as `args` or `parameters`",
    "'{}' holds a tool call without 'arguments', but with '{}'",
)
UNEQUAL_CALLS = Refusal(
    "successive turns that are calls, with different masks, or with a thought after the first",
    "'{}' holds successive calls with different masks or thoughts",
)
TWO_THOUGHTS = Refusal(
    "different thoughts in one turn, for example as `reasoning_content` and as `thinking`",
    "'{}' holds a turn with two different thoughts",
)
BAD_ARGUMENTS = Refusal(
    "`arguments` that are not a JSON object",
    "'{}' holds a tool call whose 'arguments' are not a JSON object",
)
NO_RESULT = Refusal(
    "parallel calls of which only some have a result", "'{}' holds parallel calls with too few results"
)
LOST_RESULT = Refusal("a result of a call that was not made", "'{}' holds a result without its call")
UNCLEAR_RESULT = Refusal(
    "parallel results that neither ids nor names assign to their calls",
    "'{}' holds results whose ids or names do not match the calls",
)
BAD_MASK = Refusal(
    "a weight other than 0 and 1, or masks of one turn that differ",
    "'{}' holds a turn whose '{}' is neither 0 nor 1, or contradicts another mask",
)
OTHER_TRAINED = Refusal(
    "a mask that trains a turn of another role than the assistant",
    "'{}' marks a turn as trained that is not the assistant's",
)
PART_TRAINED = Refusal(
    "`train_detail`: a turn of which a part is trained", "'{}' marks a part of a turn as trained"
)
NOT_READ = Refusal(
    "a column of `--map` that has no meaning in this row, for example `input` next to messages",
    "'{}' is mapped, and the row is read without it",
)
PLAIN_TOOLS = Refusal(
    "tools next to a plain prompt and a plain response, whose texts show no tools",
    "'{}' has tools, and the prompt is no list of messages",
)
NOT_TEXT = Refusal("`input` or `system` that are not text", "'{}' must be text")
BAD_HISTORY = Refusal(
    "`history` that is neither pairs of texts nor messages",
    "'{}' must hold pairs of a question and its answer, or messages",
)

REFUSED = (
    *(TWO_COLUMNS, TWO_PROMPTS, TREE, NOT_MESSAGES, NO_CONTENT, BROKEN_JSON, NO_CALL, TWO_CALLS, BAD_CALL),
    *(BAD_ARGUMENTS, NO_RESULT, LOST_RESULT, UNCLEAR_RESULT, BAD_MASK, OTHER_TRAINED, PART_TRAINED),
    *(OTHER_ARGUMENTS, UNEQUAL_CALLS, TWO_THOUGHTS, NOT_READ, PLAIN_TOOLS, NOT_TEXT, BAD_HISTORY),
)
