//! Log lines for people at a terminal: short, and coloured unless the environment disables it. A
//! request's line shows the main facts; the formats for files and programs have all of them.

use std::fmt::{self, Debug};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use super::colours::{CYAN, Colours, DIM, GREEN, RED, YELLOW};
use super::log_fields::escaped;
use weir_store::budget::money::grouped;
use weir_store::now_ms;

/// The one path that is not shown: nearly all requests have it.
const USUAL_PATH: &str = "/v1/chat/completions";

/// Formatter of log lines for a terminal.
pub(super) struct TerminalLines {
    colours: Colours,
    clock: fn() -> u64,
}

impl TerminalLines {
    pub(super) fn new(colours: Colours) -> Self {
        Self { colours, clock: now_ms }
    }

    fn paint(&self, writer: &mut Writer<'_>, colour: &str, text: &str) -> fmt::Result {
        writer.write_str(&self.colours.paint(colour, text))
    }

    /// Writes the time of day, UTC.
    fn time(&self, writer: &mut Writer<'_>) -> fmt::Result {
        let seconds = (self.clock)() / 1000 % 86_400;
        let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        self.paint(writer, DIM, &format!("{hours:02}:{minutes:02}:{seconds:02}Z"))
    }

    fn request(&self, writer: &mut Writer<'_>, request: &Request) -> fmt::Result {
        let status = request.number("status");
        let colour = match status {
            Some(200..400) => GREEN,
            Some(400..500) => YELLOW,
            _ => RED,
        };
        writer.write_char(' ')?;
        let shown = status.map_or_else(|| "---".to_owned(), |status| status.to_string());
        self.paint(writer, colour, &shown)?;
        let text = |name| request.text(name).unwrap_or_default();
        if text("path") != USUAL_PATH {
            write!(writer, " {} {}", text("method"), text("path"))?;
        }
        for text in [request.text("team"), request.text("model")].into_iter().flatten() {
            write!(writer, " {text}")?;
        }
        if let Some(action) = request.text("action") {
            writer.write_char(' ')?;
            self.paint(writer, if action == "pass" { DIM } else { CYAN }, action)?;
        }
        if !["complete", ""].contains(&text("outcome")) {
            writer.write_char(' ')?;
            let colour = if matches!(status, Some(500..) | None) { RED } else { YELLOW };
            self.paint(writer, colour, text("outcome"))?;
        }
        let facts = request.facts();
        if !facts.is_empty() {
            write!(writer, "  {}", facts.join(", "))?;
        }
        writeln!(writer)
    }
}

impl<S, N> FormatEvent<S, N> for TerminalLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        self.time(&mut writer)?;
        if event.metadata().target() == "weir::request" {
            let mut request = Request::default();
            event.record(&mut request);
            return self.request(&mut writer, &request);
        }
        let (colour, word) = match *event.metadata().level() {
            Level::ERROR => (RED, "error"),
            Level::WARN => (YELLOW, "warning"),
            Level::INFO => (GREEN, "info"),
            _ => (DIM, "debug"),
        };
        writer.write_char(' ')?;
        self.paint(&mut writer, colour, word)?;
        writer.write_char(' ')?;
        context.format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}

/// Facts of a request, by the names of their fields.
#[derive(Default)]
struct Request {
    numbers: Vec<(&'static str, u64)>,
    texts: Vec<(&'static str, String)>,
}

impl Request {
    fn number(&self, name: &str) -> Option<u64> {
        self.numbers.iter().find(|(own, _)| *own == name).map(|(_, number)| *number)
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.texts.iter().find(|(own, _)| *own == name).map(|(_, text)| text.as_str())
    }

    fn facts(&self) -> Vec<String> {
        let number = |name| self.number(name);
        let limit = number("limit_tokens").map(|limit| format!(" of {}", grouped(limit)));
        let limit = limit.unwrap_or_default();
        let sizes = ["received_tokens", "sent_tokens", "prompt_tokens"].map(number);
        let tokens = match sizes {
            [Some(received), Some(sent), _] if sent < received => {
                Some(format!("{} -> {}{limit} tokens", grouped(received), grouped(sent)))
            }
            [Some(received), ..] => Some(format!("{}{limit} tokens", grouped(received))),
            [None, _, Some(prompt)] => Some(format!("{} tokens", grouped(prompt))),
            _ => None,
        };
        let some = |count: Option<u64>| count.filter(|count| *count > 0);
        let seconds = |ms: u64| match ms {
            0..1000 => format!("{ms} ms"),
            _ => format!("{}.{} s", grouped(ms / 1000), ms / 100 % 10),
        };
        let facts = [
            tokens,
            some(number("cached_tokens")).map(|cached| format!("{} cached", grouped(cached))),
            number("completion_tokens").map(|output| format!("{} out", grouped(output))),
            number("attempts").map(|attempts| format!("{attempts} attempts")),
            number("overflows").map(|refused| format!("{refused} refused as too long")),
            number("total_ms").map(seconds),
            self.text("cost_usd").map(|cost| format!("${cost}")),
        ];
        facts.into_iter().flatten().collect()
    }
}

impl Visit for Request {
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.numbers.push((field.name(), value));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.texts.push((field.name(), escaped(value)));
    }

    fn record_debug(&mut self, _: &Field, _: &dyn Debug) {}
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::cli::log_fields::PlainFields;
    use crate::cli::log_fields::tests::Lines;

    fn lines(has_colours: bool, log: impl FnOnce()) -> String {
        let lines = Lines(Arc::new(Mutex::default()));
        let format = TerminalLines { colours: Colours(has_colours), clock: || 45_296_789 };
        let builder = tracing_subscriber::fmt().with_writer(lines.clone());
        let subscriber = builder.event_format(format).fmt_fields(PlainFields).finish();
        tracing::subscriber::with_default(subscriber, log);
        let bytes = lines.0.lock().expect("no other thread").clone();
        String::from_utf8(bytes).expect("text")
    }

    fn compacted() {
        tracing::info!(
            target: "weir::request",
            method = "POST",
            path = "/v1/chat/completions",
            status = Some(200_u16),
            outcome = "complete",
            model = Some("gpt-4o"),
            action = Some("mask+evict"),
            received_tokens = Some(23_456_u64),
            sent_tokens = Some(15_820_u64),
            limit_tokens = Some(16_000_u64),
            stream = true,
            total_ms = 1849_u64,
            bytes_out = 900_u64,
            prompt_tokens = Some(15_811_u64),
            completion_tokens = Some(312_u64),
            cached_tokens = Some(14_900_u64),
            cost_usd = Some("0.0123".to_owned()),
            "request"
        );
    }

    #[test]
    fn a_request_is_one_short_line() {
        let plain = "12:34:56Z 200 gpt-4o mask+evict  23,456 -> 15,820 of 16,000 tokens, 14,900 \
                     cached, 312 out, 1.8 s, $0.0123\n";
        assert_eq!(lines(false, compacted), plain);
        let coloured = lines(true, compacted);
        assert!(coloured.contains("\u{1b}[32m200\u{1b}[0m"), "{coloured:?}");
        assert!(coloured.contains("\u{1b}[36mmask+evict\u{1b}[0m"), "{coloured:?}");
        let mut bare = coloured;
        for code in ["2", "32", "36", "0"] {
            bare = bare.replace(&format!("\u{1b}[{code}m"), "");
        }
        assert_eq!(bare, plain);
    }

    #[test]
    fn what_callers_choose_moves_nothing_on_the_terminal() {
        let hostile = "m\u{1b}[2J\r\n\u{9b}31m\u{202e}x\u{7}";
        let line = lines(false, || {
            tracing::info!(
                target: "weir::request",
                method = "POST",
                path = hostile,
                status = 404_u16,
                outcome = "not_found",
                model = hostile,
                "request"
            );
        });
        assert!(line.starts_with("12:34:56Z 404 POST m\\u{1b}[2J\\r\\n"), "{line:?}");
        let line = line.strip_suffix('\n').expect("a line");
        assert!(!line.chars().any(|own| own.is_control() || own == '\u{202e}'), "{line:?}");
        let warning = lines(false, || {
            let error = hostile;
            tracing::warn!(target: "weir::store", %error, "it said {hostile}");
        });
        let warning = warning.strip_suffix('\n').expect("a line");
        assert!(warning.starts_with("12:34:56Z warning it said m\\u{1b}"), "{warning:?}");
        assert!(!warning.chars().any(|own| own.is_control() || own == '\u{202e}'), "{warning:?}");
    }
}
