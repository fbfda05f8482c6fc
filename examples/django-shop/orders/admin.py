"""Orders in the admin site."""

from django.contrib import admin

from orders.models import Order

admin.site.register(Order)
