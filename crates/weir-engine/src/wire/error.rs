//! Reasons why a body or a message cannot be read.

/// Reason why a body cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BodyError {
    /// Not UTF-8 from this byte on.
    NotUtf8 { valid_up_to_bytes: usize },
    /// Not JSON, or not a JSON object; `detail` gives the position.
    NotJson { detail: String },
    /// A member that weir acts on is given twice.
    DuplicateKey { key: String },
    /// A member's name differs only in letter case from one that weir acts on.
    OtherCase { key: String, known: &'static str },
    /// A member has an invalid type.
    WrongType { key: String, expected: &'static str },
    /// More messages than the limit.
    TooManyMessages { limit: usize },
}

/// Reason why one message cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FieldError {
    /// A member that weir acts on is given twice.
    DuplicateKey { key: &'static str },
    /// A member has an invalid type; the key is empty for the message itself.
    WrongType { key: &'static str, expected: &'static str },
}
