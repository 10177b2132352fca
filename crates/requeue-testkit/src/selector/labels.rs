//! Parses label selectors like the package `labels` of apimachinery, with the same
//! errors.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::status::FieldError;
use crate::validation::{label_key_errors, label_value_errors};

/// A condition on the value of one label.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Requirement {
    pub(super) label: String,
    operator: Operator,
}

#[derive(Clone, Debug, PartialEq)]
enum Operator {
    In(BTreeSet<String>),
    NotIn(BTreeSet<String>),
    Exists,
    DoesNotExist,
    GreaterThan(i64),
    LessThan(i64),
}

impl Requirement {
    pub(super) fn matches(&self, label: &Value) -> bool {
        let value = label.as_str();
        let number = value.and_then(|value| value.parse::<i64>().ok());
        match &self.operator {
            Operator::In(values) => value.is_some_and(|value| values.contains(value)),
            Operator::NotIn(values) => value.is_none_or(|value| !values.contains(value)),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
            Operator::GreaterThan(bound) => number.is_some_and(|number| number > *bound),
            Operator::LessThan(bound) => number.is_some_and(|number| number < *bound),
        }
    }
}

/// Parses a label selector.
///
/// # Errors
///
/// Returns an error if the selector is invalid. The text is that of the API server.
pub(super) fn parse(selector: &str) -> Result<Vec<Requirement>, String> {
    let mut parser = Parser { tokens: tokens(selector), next: 0 };
    let mut requirements = Vec::new();
    loop {
        match parser.peek() {
            "" => return Ok(requirements),
            token if token == "!" || is_word(token) => {
                let requirement = parser.requirement();
                let refused = |why| format!("unable to parse requirement: {why}");
                requirements.push(requirement.map_err(refused)?);
            }
            other => {
                return Err(format!(
                    "found '{other}', expected: !, identifier, or 'end of string'"
                ));
            }
        }
        match parser.take() {
            "" => return Ok(requirements),
            "," => match parser.peek() {
                token if token == "!" || is_word(token) => {}
                other => return Err(format!("found '{other}', expected: identifier after ','")),
            },
            other => return Err(format!("found '{other}', expected: ',' or 'end of string'")),
        }
    }
}

/// The tokens of a selector, and the position in them. An empty token represents the
/// end.
struct Parser<'a> {
    tokens: Vec<&'a str>,
    next: usize,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> &'a str {
        self.tokens.get(self.next).copied().unwrap_or_default()
    }

    fn take(&mut self) -> &'a str {
        let token = self.peek();
        self.next += 1;
        token
    }

    fn requirement(&mut self) -> Result<Requirement, String> {
        let mut label = self.take();
        let is_negated = label == "!";
        if is_negated {
            label = self.take();
        }
        if !is_word(label) {
            return Err(format!("found '{label}', expected: identifier"));
        }
        let errors = label_key_errors(label);
        if !errors.is_empty() {
            let error = FieldError::invalid("<nil>", &json!(label), &errors.join("; "));
            return Err(error.to_string());
        }
        let operator = match (is_negated, self.peek()) {
            (true, "" | ",") => Operator::DoesNotExist,
            (false, "" | ",") => Operator::Exists,
            _ => self.operation(label)?,
        };
        Ok(Requirement { label: label.to_owned(), operator })
    }

    /// Parses an operator and its values.
    fn operation(&mut self, label: &str) -> Result<Operator, String> {
        let operator = self.take();
        let values = match operator {
            "in" | "notin" => self.values()?,
            "=" | "==" | "!=" | ">" | "<" => BTreeSet::from([self.value()?.to_owned()]),
            other => {
                return Err(format!("found '{other}', expected: in, notin, =, ==, !=, gt, lt"));
            }
        };
        let mut errors = Vec::new();
        let mut bound = 0;
        if let (">" | "<", Some(value)) = (operator, values.first()) {
            match value.parse() {
                Ok(number) => bound = number,
                Err(_) => {
                    let why = "for 'Gt', 'Lt' operators, the value must be an integer";
                    errors.push(FieldError::invalid("values[0]", &json!(value), why));
                }
            }
        }
        for (at, value) in values.iter().enumerate() {
            let found = label_value_errors(value);
            if !found.is_empty() {
                let field = format!("values[{at}][{label}]");
                errors.push(FieldError::invalid(field, &json!(value), &found.join("; ")));
            }
        }
        if !errors.is_empty() {
            return Err(FieldError::aggregate(&errors));
        }
        Ok(match operator {
            "in" | "=" | "==" => Operator::In(values),
            ">" => Operator::GreaterThan(bound),
            "<" => Operator::LessThan(bound),
            _ => Operator::NotIn(values),
        })
    }

    /// Parses the single value after an operator. The value may be missing, which is
    /// the same as an empty text.
    fn value(&mut self) -> Result<&'a str, String> {
        match self.peek() {
            "" | "," => Ok(""),
            value if is_word(value) => Ok(self.take()),
            other => Err(format!("found '{other}', expected: identifier")),
        }
    }

    /// Parses a list of values in parentheses.
    fn values(&mut self) -> Result<BTreeSet<String>, String> {
        let open = self.take();
        if open != "(" {
            return Err(format!("found '{open}' expected: '('"));
        }
        let mut values = BTreeSet::new();
        if self.peek() == ")" {
            self.take();
            return Ok(BTreeSet::from([String::new()]));
        }
        if !is_word(self.peek()) && self.peek() != "," {
            return Err(format!("found '{}', expected: ',', ')' or identifier", self.peek()));
        }
        loop {
            match self.take() {
                word if is_word(word) => {
                    values.insert(word.to_owned());
                    match self.peek() {
                        "," => {}
                        ")" => break,
                        other => return Err(format!("found '{other}', expected: ',' or ')'")),
                    }
                }
                "," => {
                    if values.is_empty() || matches!(self.peek(), ")" | ",") {
                        values.insert(String::new());
                    }
                    if self.peek() == ")" {
                        break;
                    }
                }
                other => return Err(format!("found '{other}', expected: ',', or identifier")),
            }
        }
        self.take();
        Ok(values)
    }
}

fn is_word(token: &str) -> bool {
    !token.is_empty() && !token.starts_with(is_symbol)
}

fn is_symbol(character: char) -> bool {
    "=!(),><".contains(character)
}

fn tokens(mut text: &str) -> Vec<&str> {
    let is_space = |character: char| " \t\r\n".contains(character);
    let mut tokens = Vec::new();
    loop {
        text = text.trim_start_matches(is_space);
        let Some(first) = text.chars().next() else { return tokens };
        let end = if text.starts_with("==") || text.starts_with("!=") {
            2
        } else if is_symbol(first) {
            1
        } else {
            text.find(|it| is_symbol(it) || is_space(it)).unwrap_or(text.len())
        };
        let (token, rest) = text.split_at(end);
        tokens.push(token);
        text = rest;
    }
}
