//! Readiness report for monitoring. Queries nothing and changes nothing.

use weir_store::State;

/// Renders the readiness report: the state of the store, whether the Redis that counts fails, and
/// whether the last configuration was refused. None of these makes weir unready.
pub(super) fn ready(store: State, is_redis_failing: bool, is_refused: bool) -> String {
    let store = match store {
        State::File => "file",
        State::Server => "server",
        State::Memory => "memory",
        State::Failing => "failing",
    };
    let redis = if is_redis_failing { r#","redis":"failing""# } else { "" };
    let refused = if is_refused { r#","configuration":"refused""# } else { "" };
    format!(r#"{{"status":"ready","store":"{store}"{redis}{refused}}}"#)
}
