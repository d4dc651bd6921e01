//! Keys of a team share its stored data; another team sees and changes none of it.

use weir::config::{Config, Originals};
use weir_engine::compact::reference;

use super::setting::{Key, Setting, start};
use crate::server::harness::{Message, Upstream, bare};
use crate::store::originals::{conversation, cut, limited};

fn keeping(config: &mut Config) {
    config.context.originals = Originals::Store;
}

async fn original(setting: &Setting, key: &Key, raw_message: &str) -> Message {
    let path = format!("/weir/v1/originals/{}", reference(raw_message));
    setting.ask(bare("GET", &path, &key.header())).await
}

#[tokio::test]
async fn originals_are_a_teams() {
    let mut upstream = Upstream::start().await;
    let setting = start(&upstream.address.clone(), keeping).await;
    let one = setting.key("search", "{}").await;
    let two = setting.key("search", "{}").await;
    let other = setting.key("ads", r#"{"passthrough":true}"#).await;
    let messages = conversation(60);
    let request = limited(&one.header(), &messages);
    let answer = crate::server::harness::FINE;
    let (left_out, _) = cut(setting.weir.address, &mut upstream, request, &messages, answer).await;
    for message in left_out {
        for key in [&one, &two] {
            let found = original(&setting, key, message).await;
            assert_eq!((found.status(), &found.body[..]), (200, message.as_bytes()));
        }
        original(&setting, &other, message).await.assert_error(404, "not_found");
    }
}

#[tokio::test]
async fn what_one_team_sends_changes_nothing_of_anothers() {
    let messages = conversation(60);
    // The request that each weir sends of the conversation for the team "search".
    let mut sent = Vec::new();
    for others_first in [false, true] {
        let mut upstream = Upstream::start().await;
        let setting = start(&upstream.address.clone(), |_| {}).await;
        let search = setting.key("search", "{}").await;
        let ads = setting.key("ads", "{}").await;
        let requests = match others_first {
            false => vec![limited(&search.header(), &messages)],
            true => vec![
                limited(&ads.header(), &messages[..messages.len() - 2]),
                limited(&ads.header(), &messages),
                limited(&search.header(), &messages),
            ],
        };
        for request in requests {
            let address = setting.weir.address;
            let asking =
                tokio::spawn(async move { crate::server::harness::ask(address, request).await });
            let seen = upstream.next().await;
            sent.push(seen.body.clone());
            seen.answer(crate::server::harness::FINE);
            assert_eq!(asking.await.expect("it is answered").status(), 200);
        }
    }
    assert_eq!(sent.first(), sent.last());
}
