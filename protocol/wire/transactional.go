package wire

// KeyInitProducerID is the key of InitProducerId.
const KeyInitProducerID int16 = 22

// HasTransactionalID says whether an InitProducerId request names a transaction, whose coordinator then fences its older
// producer; without one, any broker gives out an id and a lost answer costs nothing. A body that does not parse counts as
// naming one.
func HasTransactionalID(body []byte, version int16) bool {
	r := reader{b: body}
	_, named := r.nullable(Flexible(KeyInitProducerID, version))
	return named || r.bad
}
