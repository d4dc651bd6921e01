//! Fields of a log line for people: `name=value`, text in quotes. Same output as the subscriber's
//! own, at a fraction of the cost, since each request writes twenty of them.

use std::fmt::{self, Debug, Write as _};

use tracing::field::{Field, Visit};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::Writer;

/// Formatter of fields for people.
pub(super) struct PlainFields;

impl<'writer> FormatFields<'writer> for PlainFields {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'writer>, fields: R) -> fmt::Result {
        let mut plain = Plain { writer, is_first: true, result: Ok(()) };
        fields.record(&mut plain);
        plain.result
    }
}

struct Plain<'writer> {
    writer: Writer<'writer>,
    is_first: bool,
    result: fmt::Result,
}

impl Plain<'_> {
    /// Writes the name before a field's value. The message has no name.
    fn name(&mut self, field: &Field) -> fmt::Result {
        if !self.is_first {
            self.writer.write_char(' ')?;
        }
        self.is_first = false;
        if field.name() == "message" {
            return Ok(());
        }
        self.writer.write_str(field.name())?;
        self.writer.write_char('=')
    }

    fn write(&mut self, field: &Field, value: impl FnOnce(&mut Writer<'_>) -> fmt::Result) {
        if self.result.is_ok() {
            self.result = self.name(field).and_then(|()| value(&mut self.writer));
        }
    }
}

impl Visit for Plain<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Text quoted by a message or a displayed value may come from outside.
        self.write(field, |writer| write!(Escaping(writer), "{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        let is_plain = !value.bytes().any(|byte| matches!(byte, b'"' | b'\\' | 0..0x20 | 0x7f..));
        self.write(field, |writer| {
            if !is_plain || field.name() == "message" {
                return write!(writer, "{value:?}");
            }
            writer.write_char('"')?;
            writer.write_str(value)?;
            writer.write_char('"')
        });
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        let mut digits = [0; MAX_DIGITS];
        self.write(field, |writer| writer.write_str(decimal(value, &mut digits)));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.write(field, |writer| writer.write_str(if value { "true" } else { "false" }));
    }
}

/// Writer that escapes everything that a terminal or a line reader might interpret.
struct Escaping<'a, 'writer>(&'a mut Writer<'writer>);

impl fmt::Write for Escaping<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        match is_harmless(text) {
            true => self.0.write_str(text),
            false => self.0.write_str(&escaped(text)),
        }
    }
}

fn is_harmless(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, 0x20..0x7f))
}

/// Escapes everything in `text` that a terminal or a line reader might interpret.
pub(super) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for own in text.chars() {
        match own {
            ' '..='~' => escaped.push(own),
            _ => escaped.extend(own.escape_debug()),
        }
    }
    escaped
}

/// Number of digits of the largest number.
const MAX_DIGITS: usize = 20;

/// Writes `value` in digits at the end of `digits`. The general formatter takes four times as long.
fn decimal(mut value: u64, digits: &mut [u8; MAX_DIGITS]) -> &str {
    let mut start = MAX_DIGITS;
    loop {
        start -= 1;
        digits[start] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            return str::from_utf8(&digits[start..]).unwrap_or_default();
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::fmt::MakeWriter;

    use super::*;

    #[derive(Clone, Default)]
    pub(crate) struct Lines(pub Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("no other thread").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl<'a> MakeWriter<'a> for Lines {
        type Writer = Self;

        fn make_writer(&'a self) -> Self {
            self.clone()
        }
    }

    /// Formats one event, with and without this formatter.
    fn line(is_own: bool) -> String {
        let lines = Lines::default();
        let builder = tracing_subscriber::fmt().with_writer(lines.clone()).without_time();
        let log = || {
            tracing::info!(
                target: "weir::request",
                path = "/v1/x",
                odd = "a \"b\"\n\u{1b}[31m é",
                status = Some(200_u16),
                none = None::<u64>,
                tokens = u64::MAX,
            zero = 0_u64,
            ten = 10_u64,
                stream = true,
                "request {}",
                1
            );
        };
        if is_own {
            tracing::subscriber::with_default(builder.fmt_fields(PlainFields).finish(), log);
        } else {
            tracing::subscriber::with_default(builder.finish(), log);
        }
        let bytes = lines.0.lock().expect("no other thread").clone();
        String::from_utf8(bytes).expect("text")
    }

    #[test]
    fn a_line_reads_as_the_subscribers_own() {
        assert_eq!(line(true), line(false));
        assert!(line(true).contains("path=\"/v1/x\""));
        assert!(!line(true).contains('\u{1b}'), "nothing that a terminal obeys");
    }
}
