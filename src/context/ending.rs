//! How a message's text ends, as far as it says who is to speak next: a question to the assistant, or an
//! action whose output follows. Pure.

use std::borrow::Cow;

use crate::wire::Role;

/// The end of what a message says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ending {
    #[default]
    Other,
    /// A short text of a user asks something.
    Question,
    /// An assistant's text ends in code, a tag or a record: the next user message is its output.
    Action,
}

/// Longer user messages are material and not questions.
const QUESTION_TOKENS: u64 = 300;

impl Ending {
    /// The ending of the `texts` that a message of `role` says in `text_tokens`.
    pub fn of<'t>(
        role: Role,
        text_tokens: u64,
        mut texts: impl DoubleEndedIterator<Item = Cow<'t, str>>,
    ) -> Self {
        let mut is_question = || text_tokens <= QUESTION_TOKENS && texts.any(|text| asks(&text));
        match role {
            Role::User if is_question() => Self::Question,
            Role::Assistant if texts.next_back().is_some_and(|text| is_action(&text)) => {
                Self::Action
            }
            _ => Self::Other,
        }
    }
}

/// Whether an assistant's text ends as those of agents without tools do: in a block of code to run, a
/// closing tag, a record, or a line that names an action and its input.
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

/// Whether a text asks something: a question mark of any script ends one of its sentences, or a word
/// that does the same where none is usual.
pub fn asks(text: &str) -> bool {
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
            let ending = Ending::of(Role::User, 10, [text.into()].into_iter());
            assert_eq!(ending == Ending::Question, expected, "{text}");
            assert_eq!(Ending::of(Role::User, 301, [text.into()].into_iter()), Ending::Other);
            assert_eq!(Ending::of(Role::Tool, 10, [text.into()].into_iter()), Ending::Other);
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
            let ending = Ending::of(Role::Assistant, 10, [text.into()].into_iter());
            assert_eq!(ending == Ending::Action, expected, "{text}");
        }
    }
}
