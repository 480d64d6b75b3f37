# What an operator's token needs for kvip pool list, add, remove, drain, undrain and weight. Replace the names by those in
# kvip.yaml. Whoever only lists needs read in the place of write.

# add registers brokers, remove deregisters those that add has registered.
service "kafka-orders" {
  policy = "write"
}

node_prefix "" {
  policy = "read"
}

# The nodes that add makes up.
node_prefix "kvip-" {
  policy = "write"
}

key_prefix "kvip/pools/" {
  policy = "write"
}
