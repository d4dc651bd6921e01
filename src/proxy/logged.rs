//! Texts that callers choose, cut for the log.

/// Maximum length of a path or model name in the log; callers choose them.
pub const MAX_LOGGED_BYTES: usize = 200;

/// Truncates a text for the log.
pub(super) fn logged(text: &str) -> String {
    clipped(text).to_owned()
}

/// Like [`logged`], without a copy.
pub(super) fn clipped(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_LOGGED_BYTES)]
}

/// Truncates a model name, which callers choose, for storage and the log.
pub(super) fn shown(model: &str) -> String {
    model.chars().take(100).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_callers_choose_is_logged_in_part() {
        assert_eq!(logged("/v1/models"), "/v1/models");
        assert_eq!(logged(&"a".repeat(201)), "a".repeat(200));
        assert_eq!(logged(&"€".repeat(100)), "€".repeat(66));
    }
}
