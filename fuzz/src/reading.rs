//! Bodies read on: what follows the beginning of another body is read as in a body read whole.

use weir_engine::wire::{Beginning, Protocol, Request};

const MAX_MESSAGES: usize = 256;
/// Ends of bodies behind a message, each in place of the received one.
const ENDS: [&str; 10] = [
    "]}",
    "",
    " ] , \"stream\":true}",
    "],\"model\":\"a\",\"system\":\"b\",\"instructions\":\"c\"}",
    "],\"messages\":[],\"input\":[]}",
    ",7]}",
    ",{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\"},{}],\"weir\":null}]}",
    ",{\"role\":\"assistant\",\"content\":\"a\"},{\"type\":\"function_call\"}]}",
    ",{\"type\":\"item_reference\"},{\"type\":\"function_call_output\"}]}",
    "{\"role\":\"user\"}]}",
];

/// Checks each beginning of a request's body with each end.
pub fn check(protocol: Protocol, request: &Request<'_>) {
    let Some(beginning) = Beginning::of(request) else { return };
    let whole = *beginning.ends().last().expect("a beginning ends");
    assert_eq!(beginning.whole().messages(), beginning.up_to(whole).messages());
    for end in beginning.ends() {
        let (start, received) = request.text.split_at(*end);
        for rest in [received].into_iter().chain(ENDS) {
            let body = [start, rest].concat();
            let read = protocol.read(body.as_bytes(), MAX_MESSAGES);
            let on = protocol.read_on(body.as_bytes(), beginning.up_to(*end), MAX_MESSAGES);
            assert_eq!(on, read, "{body}");
        }
    }
}
