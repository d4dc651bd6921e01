//! What weir says of itself to whoever watches over it: whether it is ready, and what it has counted.
//! Asks nothing and changes nothing.

use crate::proxy::Proxy;
use crate::store::State;

/// What there is to count, for whoever scrapes it: sums over all callers, and nothing of theirs.
pub fn metrics(proxy: &Proxy) -> String {
    let figures = proxy.summaries().map(|summaries| summaries.figures());
    figures.into_iter().flatten().fold(String::new(), |mut page, (name, figure)| {
        let name = format!("weir_summaries_{name}_total");
        page.push_str(&format!("# TYPE {name} counter\n{name} {figure}\n"));
        page
    })
}

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
