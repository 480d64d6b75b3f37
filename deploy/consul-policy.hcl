# What a running kvip may do in Consul, and nothing else: watch the brokers of its pools, read what operators have ordered,
# and list itself. Replace the names by those in kvip.yaml.
#
#   consul acl policy create -name kvip -rules @consul-policy.hcl
#   consul acl token create -policy-name kvip     # its SecretID goes into consul.token_file

# pools[].discovery.service
service "kafka-orders" {
  policy = "read"
}

# Health shows a service together with its nodes.
node_prefix "" {
  policy = "read"
}

# kvip pool's orders
key_prefix "kvip/pools/" {
  policy = "read"
}

# register.service; leave it out when kvip does not register itself.
service "kvip" {
  policy = "write"
}
