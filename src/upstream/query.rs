//! Query parameters and percent-encoding of names. Pure; keeps the bytes that it does not change.

use crate::config::upstreams;

/// Version parameter of Azure's paths.
const AZURE_VERSION: &str = "api-version";

/// Appends the caller's query unchanged, then those parameters of the base that it lacks.
pub fn append(path: &mut String, callers: Option<&str>, bases: Option<&str>) {
    let mut separator = '?';
    if let Some(callers) = callers {
        path.push('?');
        path.push_str(callers);
        separator = '&';
    }
    let given = |key: &str| {
        callers.is_some_and(|callers| {
            callers.split('&').any(|pair| percent_decoded(pair_key(pair)) == percent_decoded(key))
        })
    };
    for pair in bases.into_iter().flat_map(|bases| bases.split('&')) {
        if !pair.is_empty() && !given(pair_key(pair)) {
            path.push(separator);
            path.push_str(pair);
            separator = '&';
        }
    }
}

/// Whether a parameter can carry a credential at some provider or gateway.
pub fn is_credential(pair: &str) -> bool {
    let key = percent_decoded(pair_key(pair)).to_ascii_lowercase();
    upstreams::CREDENTIAL_PARAMETERS.iter().any(|name| name.as_bytes() == key)
}

/// Removes parameters that may carry a credential.
pub fn without_credentials(query: &str) -> String {
    let kept: Vec<&str> = query.split('&').filter(|pair| !is_credential(pair)).collect();
    kept.join("&")
}

/// Removes the version parameter of Azure's paths.
pub fn without_version(query: &str) -> String {
    let is_version = |pair: &&str| percent_decoded(pair_key(pair)) == AZURE_VERSION.as_bytes();
    let kept: Vec<&str> = query.split('&').filter(|pair| !is_version(pair)).collect();
    kept.join("&")
}

/// Returns the model that a parameter names, such as Azure's `deployment` of its real-time API; empty
/// if that is not UTF-8.
pub fn model(pair: &str) -> Option<String> {
    let (key, value) = pair.split_once('=')?;
    let key = percent_decoded(key).to_ascii_lowercase();
    let names_model = matches!(key.as_slice(), b"model" | b"deployment");
    names_model.then(|| decoded_text(value).unwrap_or_default())
}

fn pair_key(pair: &str) -> &str {
    pair.split('=').next().unwrap_or_default()
}

/// Percent-decodes once; `None` if the result is not UTF-8.
pub fn decoded_text(encoded: &str) -> Option<String> {
    String::from_utf8(percent_decoded(encoded)).ok()
}

/// Percent-encodes a name as a path segment; bytes in `plain` stay as they are, too.
pub fn percent_encoded(text: &str, plain: &[u8]) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        let is_plain = byte.is_ascii_alphanumeric() || b"-_.~:".contains(&byte);
        if is_plain || plain.contains(&byte) {
            encoded.push(byte as char);
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

/// Percent-decodes once; anything that is not an escape stays as it is.
pub fn percent_decoded(text: &str) -> Vec<u8> {
    let digit = |byte: Option<&u8>| byte.and_then(|byte| (*byte as char).to_digit(16));
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        match (byte, digit(bytes.get(at + 1)), digit(bytes.get(at + 2))) {
            (b'%', Some(high), Some(low)) => {
                decoded.push((high * 16 + low) as u8);
                at += 3;
            }
            _ => {
                decoded.push(byte);
                at += 1;
            }
        }
    }
    decoded
}
