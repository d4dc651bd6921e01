//! Detection of who speaks next from the end of a message's text: a question to the assistant, or
//! an action whose output follows. Pure.

use crate::wire::Role;

/// Ending of a message's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ending {
    #[default]
    Other,
    /// A short user text that asks something.
    Question,
    /// An assistant's text that ends in code, a tag or a record: the next user message is its
    /// output.
    Action,
}

/// Maximum size of a question; longer user messages are material.
const QUESTION_TOKENS: u64 = 300;

/// Ending of a message whose texts are read one after another.
#[derive(Debug)]
pub(crate) struct EndingSoFar {
    role: Role,
    asks: bool,
    /// Whether the last text ends in an action.
    is_action: bool,
}

impl EndingSoFar {
    pub(crate) fn new(role: Role) -> Self {
        Self { role, asks: false, is_action: false }
    }

    /// Adds the next text of the message; `text_tokens` is the size of all texts so far, including
    /// it.
    pub(crate) fn push(&mut self, text: &str, text_tokens: u64) {
        match self.role {
            Role::User if text_tokens <= QUESTION_TOKENS => self.asks |= asks(text),
            Role::Assistant => self.is_action = is_action(text),
            _ => {}
        }
    }

    /// Returns the ending of the message, whose texts have `text_tokens`.
    pub(crate) fn done(&self, text_tokens: u64) -> Ending {
        match self.role {
            Role::User if self.asks && text_tokens <= QUESTION_TOKENS => Ending::Question,
            Role::Assistant if self.is_action => Ending::Action,
            _ => Ending::Other,
        }
    }
}

/// Returns whether an assistant's text ends like one of an agent without tools. It ends in a block
/// of code to run, a closing tag, a record, or a line that names an action and its input.
fn is_action(text: &str) -> bool {
    let said = text.trim_end();
    let line = said.rsplit('\n').next().unwrap_or_default().trim_start();
    let ends_in_tag =
        said.ends_with('>') && said.rfind('<').is_some_and(|open| said[open..].starts_with("</"));
    let ends_in_record = said.ends_with('}') && said.contains('{');
    let is_named = |name: &str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(':'));
    line.starts_with("```")
        || line.starts_with("~~~")
        || ends_in_tag
        || ends_in_record
        || ["Action", "Action Input"].into_iter().any(is_named)
}

/// Returns whether a text asks something. One of its sentences ends in a question mark of any
/// script, or in a question particle of a language that usually omits the mark.
pub(crate) fn asks(text: &str) -> bool {
    if text.is_ascii() {
        let ends = |at: usize| {
            let next = text.as_bytes().get(at + 1);
            next.is_none_or(|next| !next.is_ascii_alphanumeric() && !b"=/.".contains(next))
        };
        return memchr::memchr_iter(b'?', text.as_bytes()).any(ends);
    }
    let mut letters = text.chars().peekable();
    let mut asks = false;
    while let Some(letter) = letters.next() {
        let next = letters.peek().copied();
        let ends =
            next.is_none_or(|next| !next.is_alphanumeric() && !matches!(next, '=' | '/' | '.'));
        asks |= match letter {
            '？' | '؟' | '՞' | '፧' | '‽' => true,
            '?' | '\u{37e}' => ends,
            '吗' | '呢' | 'か' | '까' => {
                next.is_none_or(|next| matches!(next, '。' | '．' | '.' | '\n'))
            }
            _ => false,
        };
    }
    asks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ending(role: Role, text_tokens: u64, text: &str) -> Ending {
        let mut so_far = EndingSoFar::new(role);
        so_far.push(text, text_tokens);
        so_far.done(text_tokens)
    }

    #[test]
    fn questions_differ_from_other_text() {
        for (text, expected) in [
            ("What?", true),
            ("What was it? I forgot.", true),
            ("(really?)", true),
            ("何時ですか。", true),
            ("你好吗", true),
            ("ما هذا؟", true),
            ("see https://example.com/?a=b", false),
            ("see https://example.com/a?b", false),
            ("x = a ?? b.c", true),
            ("let y = x?.z", false),
            ("Go on.", false),
            ("かばん", false),
            ("", false),
        ] {
            assert_eq!(asks(text), expected, "{text}");
            let ending = ending(Role::User, 10, text);
            assert_eq!(ending == Ending::Question, expected, "{text}");
            assert_eq!(self::ending(Role::User, 301, text), Ending::Other);
            assert_eq!(self::ending(Role::Tool, 10, text), Ending::Other);
        }
    }

    #[test]
    fn actions_differ_from_answers() {
        for (text, expected) in [
            ("I look.\n```sh\nls\n```\n", true),
            ("~~~\nls\n~~~", true),
            ("<read>\na\n</read>", true),
            ("I search.\n{\"tool\": \"find\", \"query\": \"x\"}", true),
            ("Thought: look\nAction: find[x]", true),
            ("Action: find\nAction Input: x", true),
            ("Run this:\n```sh\nls\n```\nThen tell me.", false),
            ("The train leaves at nine.", false),
            ("Actions: none", false),
            ("a > b", false),
            ("", false),
        ] {
            let ending = ending(Role::Assistant, 10, text);
            assert_eq!(ending == Ending::Action, expected, "{text}");
        }
    }
}
