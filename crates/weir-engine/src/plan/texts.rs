//! Texts of a plan: each message as received and as sent, and each note. Decides nothing.

use super::Plan;
use crate::compact::report::texts::full_text;
use crate::wire::{Edit, Request, splice};

impl Plan {
    /// Returns the text of a message as received, with its calls; `None` if there is no such message.
    pub fn received_text(&self, request: &Request<'_>, message: usize) -> Option<String> {
        let raw = request.messages.get(message)?;
        request.protocol.read_message(raw).ok().map(|own| full_text(&own))
    }

    /// Returns the text of a message as it is sent, with its calls; `None` if it is not sent.
    pub fn sent_text(&self, request: &Request<'_>, message: usize) -> Option<String> {
        let raw = request.messages.get(message)?;
        let own = self.changes.iter().filter(|(index, _)| *index == message);
        let edits: Vec<&Edit> = own
            .map(|(_, edit)| edit)
            .filter(|edit| !matches!(edit, Edit::InsertBefore(_) | Edit::InsertAfter(_)))
            .collect();
        if edits.contains(&&Edit::Remove) {
            return None;
        }
        let sent = splice::rewrite(request.protocol, raw, &edits);
        request.protocol.read_message(&sent).ok().map(|own| full_text(&own))
    }

    /// Returns the text of a report's note, or of the recall that follows the notes.
    pub fn note_text(&self, number: usize) -> Option<String> {
        let recall = || {
            let is_next = number == 1 || self.end.note_text(number.checked_sub(1)?).is_some();
            let recall = self.recall.as_ref().filter(|_| is_next);
            recall.map(|recall| recall.text.trim().to_owned())
        };
        self.end.note_text(number).or_else(recall)
    }
}

#[cfg(test)]
mod tests {
    use crate::compact::report::Appearance;
    use crate::plan::{Names, NoSummaries, PlanOptions, plan};
    use crate::tokens::Encoding;
    use crate::wire::Protocol;

    /// Body of an agent that reads twelve files.
    fn body() -> String {
        body_with(&[])
    }

    /// Body of an agent that reads these results first, and then twelve files.
    fn body_with(results: &[String]) -> String {
        let mut messages = vec![
            r#"{"role":"system","content":"Be brief."}"#.to_owned(),
            r#"{"role":"user","content":"Check all parts."}"#.to_owned(),
        ];
        let files = (0..12).map(|nth| format!("part_{nth} holds at level {nth}. ").repeat(40));
        for (nth, result) in results.iter().cloned().chain(files).enumerate() {
            let result = serde_json::to_string(&result).expect("a string");
            messages.push(format!(r#"{{"role":"assistant","content":null,"tool_calls":[{{"id":"c{nth}","type":"function","function":{{"name":"read","arguments":"{{\"part\":\"part_{nth}\"}}"}}}}]}}"#));
            messages
                .push(format!(r#"{{"role":"tool","tool_call_id":"c{nth}","content":{result}}}"#));
        }
        format!(r#"{{"model":"gpt-4o","messages":[{}]}}"#, messages.join(","))
    }

    #[test]
    fn texts_and_appearances_agree_with_what_is_sent() {
        let body = body();
        let request = Protocol::Chat.read(body.as_bytes(), 100).expect("readable");
        let mut options = PlanOptions::new("gpt-4o", Encoding::O200kBase, 128_000);
        options.limits.header_tokens = Some(1500);
        let plan = plan(&request, &options, &NoSummaries).expect("it fits");
        let names = Names {
            model: "gpt-4o",
            policy: "default",
            is_model_known: true,
            edits: "",
            refusal: None,
        };
        let report = plan.report(&request, &names);
        let sent = plan.body.as_deref().expect("it is compacted");
        let mut seen = std::collections::HashSet::new();
        for row in &report.messages {
            let appearance = plan.end.appearance(row);
            seen.insert(appearance);
            let received = plan.received_text(&request, row.index).expect("a message");
            let text = plan.sent_text(&request, row.index);
            match appearance {
                Appearance::Pinned | Appearance::Kept => assert_eq!(text, Some(received)),
                Appearance::Note => {
                    let (number, said) = plan.end.excerpts_of(row.index).expect("excerpts");
                    assert!(text.is_none());
                    assert!(plan.note_text(number).is_some_and(|note| note.contains(said)));
                    let line = said.lines().next().unwrap_or_default();
                    assert!(line.starts_with(&format!("#{} ", row.index)), "{line}");
                    assert!(sent.contains(line), "{line}");
                }
                Appearance::Gone | Appearance::Summarised => assert!(text.is_none()),
                Appearance::Masked | Appearance::Clipped => assert_ne!(text, Some(received)),
            }
        }
        assert!(seen.contains(&Appearance::Pinned) && seen.contains(&Appearance::Note));
        assert_eq!(
            plan.received_text(&request, 2).as_deref(),
            Some(r#"> read: {"part":"part_0"}"#)
        );
        assert!(plan.received_text(&request, 26).is_none() && plan.note_text(0).is_none());
        assert!(plan.note_text(report.notes.len() + 1).is_none());
    }

    /// The line that stands out of an old result's others stays in the note.
    #[test]
    fn a_note_has_the_line_of_an_old_result_that_stands_out() {
        let with = |line: &dyn Fn(usize) -> String, odd: &str| {
            let mut lines: Vec<String> = (0..900).map(line).collect();
            lines.insert(451, odd.to_owned());
            lines
        };
        let log = |odd: &str| {
            let line = |n: usize| {
                let (minute, second, id) = (n / 60, n % 60, n * 7919);
                format!(
                    "2026-03-01T10:{minute:02}:{second:02} INFO worker-{} handled request id={id:x} in {second}ms",
                    n % 7
                )
            };
            with(&line, odd).join("\n")
        };
        let csv = |odd: &str| {
            let names = ["Ada", "Ben", "Cleo", "Dov"];
            let line = |n: usize| {
                format!("{},{},{}.{:02},paid", 1000 + n, names[n % 4], 10 + n % 80, n % 100)
            };
            with(&line, odd).join("\n")
        };
        let records = |odd: &str| {
            let line = |n: usize| {
                format!(
                    r#"{{"id": {}, "host": "node-{}", "status": "ok", "ms": {}}}"#,
                    5000 + n,
                    n % 12,
                    n % 90
                )
            };
            format!("[{}]", with(&line, odd).join(", "))
        };
        let indented = |odd: &str| {
            let line =
                |n: usize| format!("  {{\n    \"id\": {},\n    \"state\": \"ok\"\n  }}", 5000 + n);
            format!("[\n{}\n]", with(&line, odd).join(",\n"))
        };
        for (result, wanted) in [
            (log("2026-03-01T10:15:31 ERROR worker-3 disk full on /var/spool"), "disk full"),
            (log("2026-03-01T10:15:31 WARN worker-3 handled request id=7 in 12ms"), "WARN"),
            (csv("1451,Ben,17.20,refunded"), "refunded"),
            (csv("1451,Ben,,paid"), "Ben,,paid"),
            (records(r#"{"id": 5451, "host": "node-7", "status": "failed", "ms": 31}"#), "failed"),
            (indented("  {\n    \"id\": 5451,\n    \"state\": \"failed\"\n  }"), "failed"),
        ] {
            let body = body_with(&[result]);
            let request = Protocol::Chat.read(body.as_bytes(), 100).expect("readable");
            for limit_tokens in [1500, 8000] {
                let mut options = PlanOptions::new("gpt-4o", Encoding::O200kBase, 128_000);
                options.limits.header_tokens = Some(limit_tokens);
                let plan = plan(&request, &options, &NoSummaries).expect("it fits");
                let sent = plan.body.as_deref().expect("it is compacted");
                assert!(sent.contains(wanted), "{wanted} at {limit_tokens}: {:.2000}", sent);
            }
        }
    }

    /// Most of what a user prefers inside a longer message survives several compactions, in any language.
    #[test]
    fn a_users_sentences_survive_inside_longer_messages() {
        let wanted = [
            "Please keep every function short and simple",
            "No, I meant the second gate and not the first one",
            "Ich mag lieber Tabulatoren als Leerzeichen",
            "Non, je voulais dire la deuxième porte",
            "我更喜欢简短的函数名称",
            "Лучше пиши короткие сообщения к коммитам",
        ];
        let mut messages = vec![
            r#"{"role":"system","content":"Be brief."}"#.to_owned(),
            r#"{"role":"user","content":"Check all parts."}"#.to_owned(),
        ];
        for nth in 0..120 {
            let result = format!("part_{nth} holds at level {nth}, see gate_{nth}.\n").repeat(20);
            let result = serde_json::to_string(&result).expect("a string");
            messages.push(format!(r#"{{"role":"assistant","content":null,"tool_calls":[{{"id":"c{nth}","type":"function","function":{{"name":"read","arguments":"{{\"part\":\"part_{nth}\"}}"}}}}]}}"#));
            messages
                .push(format!(r#"{{"role":"tool","tool_call_id":"c{nth}","content":{result}}}"#));
            if let Some(wanted) = wanted.get(nth / 4).filter(|_| nth % 4 == 0) {
                let around = |from: usize| -> String {
                    let say = |own: usize| {
                        format!(
                            "Then look at part_{own} in src/gates/gate_{own}.rs and compare level {own} with the table. "
                        )
                    };
                    (from..from + 5).map(say).collect()
                };
                let said = format!("{}{wanted}. {}", around(nth), around(nth + 40));
                messages.push(format!(r#"{{"role":"user","content":"{said}"}}"#));
            }
        }
        let body = format!(r#"{{"model":"gpt-4o","messages":[{}]}}"#, messages.join(","));
        let request = Protocol::Chat.read(body.as_bytes(), 1000).expect("readable");
        for limit_tokens in [6000, 8000] {
            let mut options = PlanOptions::new("gpt-4o", Encoding::O200kBase, 128_000);
            options.limits.header_tokens = Some(limit_tokens);
            let plan = plan(&request, &options, &NoSummaries).expect("it fits");
            assert!(plan.compactions >= 2, "{}", plan.compactions);
            let sent = plan.body.as_deref().expect("it is compacted");
            let lost: Vec<&str> = wanted.into_iter().filter(|own| !sent.contains(own)).collect();
            assert!(lost.len() <= 2, "{limit_tokens}: {lost:?}");
        }
    }
}
