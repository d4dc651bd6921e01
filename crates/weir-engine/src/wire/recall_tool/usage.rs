//! Sum of the usage of several answers, as the provider of the last one writes it.

use std::borrow::Cow;

use super::super::json;
use super::text::Object;

/// Deeper values are taken from the last answer.
const MAX_DEPTH: usize = 8;
/// Lists with more elements do not grow.
const MAX_ELEMENTS: usize = 1024;
/// Objects with more members than these together are not summed: each is compared with each.
const MAX_MEMBERS: usize = 256;

/// Returns the sum of `usages`, JSON texts of `usage` objects: numbers add up at every depth, lists
/// are joined, and of other values the last one that is not null counts. `None` if there is no object.
pub fn summed_usage(usages: &[&str]) -> Option<String> {
    let mut objects = usages.iter().filter(|raw| Object::read(raw).is_some());
    let first = (*objects.next()?).to_owned();
    Some(objects.fold(first, |sum, more| combined(&sum, more, Numbers::Add, 0)))
}

/// Returns the report `earlier` with the figures of `later`, a newer report on the same answer.
pub(super) fn updated(earlier: &str, later: &str) -> String {
    combined(earlier, later, Numbers::Replace, 0)
}

/// Treatment of figures that both reports have.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Numbers {
    Add,
    Replace,
}

fn combined(left: &str, right: &str, numbers: Numbers, depth: usize) -> String {
    if right == "null" || depth > MAX_DEPTH {
        return if right == "null" { left } else { right }.to_owned();
    }
    if let (Some(own), Some(other)) = (Object::read(left), Object::read(right)) {
        let is_small = own.members().len() + other.members().len() <= MAX_MEMBERS;
        return if is_small { members(&own, &other, numbers, depth) } else { right.to_owned() };
    }
    if numbers == Numbers::Replace {
        return right.to_owned();
    }
    if let (Some(left_list), Some(right_list)) = (json::elements(left), json::elements(right)) {
        if left_list.len() + right_list.len() > MAX_ELEMENTS {
            return right.to_owned();
        }
        let all: Vec<&str> = left_list.into_iter().chain(right_list).collect();
        return format!("[{}]", all.join(","));
    }
    added(left, right).unwrap_or_else(|| right.to_owned())
}

/// Returns the members of both objects: those of the right one in their order, then the others.
fn members(left: &Object<'_>, right: &Object<'_>, numbers: Numbers, depth: usize) -> String {
    let mut parts = Vec::new();
    let mut push = |name: &str, value: &str| parts.push(format!("{}:{value}", json::quoted(name)));
    for (name, value) in right.members() {
        let value = match left.get(name) {
            Some(own) => Cow::Owned(combined(own, value, numbers, depth + 1)),
            None => Cow::Borrowed(*value),
        };
        push(name, &value);
    }
    let is_new = |name: &str| right.members().iter().all(|(own, _)| own != name);
    for (name, value) in left.members().iter().filter(|(name, _)| is_new(name)) {
        push(name, value);
    }
    format!("{{{}}}", parts.join(","))
}

/// Returns the sum of two numbers; `None` if one is none.
fn added(left: &str, right: &str) -> Option<String> {
    let is_number =
        |raw: &str| raw.starts_with(|first: char| first == '-' || first.is_ascii_digit());
    if !is_number(left) || !is_number(right) {
        return None;
    }
    if let (Ok(left), Ok(right)) = (left.parse::<u64>(), right.parse::<u64>()) {
        return Some(left.saturating_add(right).to_string());
    }
    let sum = left.parse::<f64>().ok()? + right.parse::<f64>().ok()?;
    sum.is_finite().then(|| sum.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_is_summed() {
        for (usages, wanted) in [
            (&[r#"{"a":1}"#][..], r#"{"a":1}"#),
            (
                &[
                    r#"{"prompt_tokens":10,"prompt_tokens_details":{"cached_tokens":4},"gone":3}"#,
                    r#"{"prompt_tokens":20,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":8,"audio_tokens":0}}"#,
                    r#"{"prompt_tokens":1,"completion_tokens":1,"prompt_tokens_details":null}"#,
                ],
                r#"{"prompt_tokens":31,"completion_tokens":6,"prompt_tokens_details":{"cached_tokens":12,"audio_tokens":0},"gone":3}"#,
            ),
            (
                &[
                    r#"{"input_tokens":5,"cache_creation":{"ephemeral_5m_input_tokens":7,"ephemeral_1h_input_tokens":1},"service_tier":"standard","iterations":[{"x":1}]}"#,
                    r#"{"input_tokens":6,"cache_creation":{"ephemeral_5m_input_tokens":0,"ephemeral_1h_input_tokens":2},"service_tier":null,"iterations":[{"x":2}],"cost":0.25}"#,
                ],
                r#"{"input_tokens":11,"cache_creation":{"ephemeral_5m_input_tokens":7,"ephemeral_1h_input_tokens":3},"service_tier":"standard","iterations":[{"x":1},{"x":2}],"cost":0.25}"#,
            ),
            (
                &[r#"{"a":18446744073709551615,"b":0.5}"#, r#"{"a":1,"b":1}"#],
                r#"{"a":18446744073709551615,"b":1.5}"#,
            ),
            (&["null", r#"{"a":1}"#, "7"], r#"{"a":1}"#),
        ] {
            assert_eq!(summed_usage(usages).as_deref(), Some(wanted));
        }
        assert_eq!(summed_usage(&[]), None);
        let large: Vec<String> = (0..MAX_MEMBERS).map(|nth| format!("\"m{nth}\":{nth}")).collect();
        let large = format!("{{{}}}", large.join(","));
        assert_eq!(summed_usage(&[r#"{"m1":1}"#, &large]), Some(large), "not compared");
        assert_eq!(summed_usage(&["null", "[]"]), None);
    }

    #[test]
    fn a_newer_report_replaces_figures() {
        let start = r#"{"input_tokens":5,"output_tokens":1,"cache_read_input_tokens":9}"#;
        let delta = r#"{"output_tokens":40,"input_tokens":null}"#;
        let wanted = r#"{"output_tokens":40,"input_tokens":5,"cache_read_input_tokens":9}"#;
        assert_eq!(updated(start, delta), wanted);
    }
}
