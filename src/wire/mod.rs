//! Bytes on the wire: bodies read into turns with borrowed spans, edits spliced back. Pure.

pub mod sse;
pub mod usage;

/// The protocols whose request bodies weir reads. Each is one module beside this file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// OpenAI's chat completions.
    Chat,
}
