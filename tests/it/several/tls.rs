//! Redis over TLS, and a Redis whose certificate no trusted authority has signed.

use serde_json::json;

use super::setting::{HEADER, Shared};
use crate::budgeted::setting::{chat, nano_usd};
use crate::budgets::server::Server as Redis;
use crate::folder::Folder;
use crate::server::harness::ask;
use crate::tls::setting::Authority;

#[tokio::test]
#[ignore = "needs PostgreSQL and Redis"]
async fn counts_are_shared_over_tls_with_a_redis_that_an_authority_vouches_for() {
    let (authority, stranger) = (Authority::new("own"), Authority::new("stranger"));
    let shared = Shared::start_with(Redis::own_over_tls(&authority)).await;
    shared.set("all/usd/day", "1").await;
    let files = Folder::new();
    let (own, others) = (files.write("own", &authority.pem), files.write("others", &stranger.pem));

    let weirs = [&own, &own].map(|roots| shared.serve(&[("SSL_CERT_FILE", roots)]));
    assert_eq!(ask(weirs[0].address, chat(HEADER, 20, json!({}))).await.status(), 200);
    shared.until_settled(weirs[1].address).await;
    let status = shared.status(weirs[1].address).await.expect("there is one budget");
    assert!(nano_usd(&status["spent"]) > 0, "what the other has spent: {status}");

    let closed = [("SSL_CERT_FILE", others.as_str()), ("WEIR_BUDGETS__ON_FAILURE", "closed")];
    let weir = shared.serve(&closed);
    let refused = ask(weir.address, chat(HEADER, 20, json!({}))).await;
    assert_eq!(refused.status(), 503, "{}", String::from_utf8_lossy(&refused.body));
}
