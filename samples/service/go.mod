module waveinfer/samples/service

go 1.24

require waveinfer v0.2.0

replace waveinfer => ../../go
