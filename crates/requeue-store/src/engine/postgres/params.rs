//! Parameters of statements, with their SQL types. A statement that is not prepared must name these types.

use std::borrow::Cow;

use tokio_postgres::types::{ToSql, Type};

pub(super) type Params<'a> = [&'a dyn Param];

/// A parameter with its SQL type.
pub(super) trait Param: ToSql + Sync {
    fn sql_type(&self) -> Type;
}

/// A value that can be an element of an array. `ARRAY` is the SQL type of the array.
pub(super) trait Scalar: ToSql + Sync {
    const TYPE: Type;
    const ARRAY: Type;
}

macro_rules! scalars {
    ($($rust:ty: $one:ident, $many:ident;)*) => {
        $(impl Scalar for $rust {
            const TYPE: Type = Type::$one;
            const ARRAY: Type = Type::$many;
        })*
    };
}

scalars! {
    bool: BOOL, BOOL_ARRAY;
    i16: INT2, INT2_ARRAY;
    i32: INT4, INT4_ARRAY;
    i64: INT8, INT8_ARRAY;
    f64: FLOAT8, FLOAT8_ARRAY;
    &str: TEXT, TEXT_ARRAY;
    Cow<'_, str>: TEXT, TEXT_ARRAY;
    &[u8]: BYTEA, BYTEA_ARRAY;
}

impl<T: Scalar> Scalar for Option<T> {
    const TYPE: Type = T::TYPE;
    const ARRAY: Type = T::ARRAY;
}

impl<T: Scalar> Param for T {
    fn sql_type(&self) -> Type {
        T::TYPE
    }
}

impl<T: Scalar> Param for Vec<T> {
    fn sql_type(&self) -> Type {
        T::ARRAY
    }
}

impl<T: Scalar> Param for &[T] {
    fn sql_type(&self) -> Type {
        T::ARRAY
    }
}

/// Returns each parameter with its type. Statements that are not prepared require this form.
pub(super) fn with_types<'a>(params: &Params<'a>) -> Vec<(&'a (dyn ToSql + Sync), Type)> {
    params.iter().map(|&param| (param as &(dyn ToSql + Sync), param.sql_type())).collect()
}
