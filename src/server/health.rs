//! Readiness report for monitoring. Queries nothing and changes nothing.

use weir_store::State;

/// Renders the readiness report: the state of the store and whether the last configuration was
/// refused. Neither a failing store nor a refused configuration makes weir unready.
pub(super) fn ready(store: State, is_refused: bool) -> String {
    let store = match store {
        State::File => "file",
        State::Server => "server",
        State::Memory => "memory",
        State::Failing => "failing",
    };
    let refused = if is_refused { r#","configuration":"refused""# } else { "" };
    format!(r#"{{"status":"ready","store":"{store}"{refused}}}"#)
}
