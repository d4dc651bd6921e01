//! What weir says of itself to whoever watches over it: whether it is ready. Asks nothing and changes
//! nothing.

use crate::store::State;

/// That weir is ready, where its store is, and whether it goes by another configuration than it was
/// last told. A store that fails is no reason to send callers away, nor is the latter.
pub fn ready(store: State, is_refused: bool) -> String {
    let store = match store {
        State::File => "file",
        State::Server => "server",
        State::Memory => "memory",
        State::Failing => "failing",
    };
    let refused = if is_refused { r#","configuration":"refused""# } else { "" };
    format!(r#"{{"status":"ready","store":"{store}"{refused}}}"#)
}
